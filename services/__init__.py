"""The four services; `embedded` runs them in one process, `processes` in one each."""
