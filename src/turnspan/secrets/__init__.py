"""Finds and masks secrets in strings. Pure: it knows strings, not traces."""
