"""Finds secrets in strings and masks them.

`scan` finds their positions: by format (`formats`), by the name before them (`names`, `around`, `values`), by the form
around them (`forms`, `keys`). The rules are tables; `words` derives the search from them. `replace` masks what is
found; `likely` finds what a person should look at. Pure, and it knows nothing of traces: the same string and rules give
the same result.
"""
