"""Data of a run: read, clean, de-duplicate, split, tokenise, keep as memory-mapped files, load.

Reading and cleaning import neither torch nor transformers: preparation holds no accelerator.
"""
