"""The pure decisions of the admission service: no clock, no I/O, no logging."""
