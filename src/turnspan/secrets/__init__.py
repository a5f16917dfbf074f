"""Finds and masks secrets in strings. No I/O; it does not know traces."""
