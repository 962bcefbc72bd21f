"""Checks of the source that no other tool provides; the Makefile runs them."""
