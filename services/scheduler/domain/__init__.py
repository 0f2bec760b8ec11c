"""The pure decisions of the scheduler service: no clock, no I/O, no logging."""
