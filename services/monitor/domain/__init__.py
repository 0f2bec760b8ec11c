"""The pure decisions of the monitor service: no clock, no I/O, no logging."""
