"""The tasks of the shop, a module for each subject."""
