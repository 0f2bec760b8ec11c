"""The SDK: a client of a running platform."""
