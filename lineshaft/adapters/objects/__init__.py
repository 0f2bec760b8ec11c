"""Objects: memory, folder; ``select`` turns a URL into one."""
