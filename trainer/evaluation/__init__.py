"""Evaluation: suites as data, and scoring a model by them before and after training."""
