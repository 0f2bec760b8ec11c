"""What the SQLite adapters share: opening a file, and the threads that use it."""
