"""Journals: memory, SQLite; ``select`` turns a URL into one."""
