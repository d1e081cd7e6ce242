"""Units of measurement."""

GIB = 2**30
"""Bytes."""
