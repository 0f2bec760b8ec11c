"""Adapters of the ports; one folder per port, one select module (URL to adapter) each."""
