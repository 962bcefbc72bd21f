"""The tasks of a shop, one module each."""
