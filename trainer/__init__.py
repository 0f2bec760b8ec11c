"""The trainer: the agent of a node, the rank entry point and the training loop."""
