"""The contracts: pure definitions that every part shares."""
