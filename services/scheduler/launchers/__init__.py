"""Launchers: what makes the runs that should run, run. They decide nothing."""
