"""Finds secrets in strings and masks them.

`scan` finds their positions, by format (`formats`) or by the name before them (`names`, `values`). `replace` masks
them. Pure, and it knows nothing of traces: the same string and rules give the same result.
"""
