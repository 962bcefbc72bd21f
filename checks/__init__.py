"""Checks of the source that no tool brings along; the Makefile runs them."""
