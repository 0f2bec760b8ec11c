"""Checkpoints: written whole or not at all, proved by hashes before they are trusted.

A checkpoint is a folder ``step-<9 digits>``: the engine's files, one file per rank, the ranks'
records, and ``manifest.json`` last; its digest is the checkpoint's. Readers believe nothing else.
"""
