"""The agent: one per node of a run. It starts the ranks, watches them and keeps the records.

Standard library, nats-py and our contracts, ports and adapters only, so that it can be put into
any image. It decides nothing about training and talks to no database.
"""
