"""What writes the reference: one module per page, each made from the code that it describes.

``make docs`` (``python -m docs.generate``) writes every page; a test compares. Nothing here is
imported by the platform.
"""
