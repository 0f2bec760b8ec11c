"""The pure decisions of the registry service: no clock, no I/O, no logging."""
