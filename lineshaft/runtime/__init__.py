"""The runtime of the services: deciders, relay, projectors, leases, settings."""
