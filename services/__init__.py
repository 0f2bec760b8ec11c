"""The four services; `services.embedded` runs them in one process."""
