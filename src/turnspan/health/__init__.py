"""Whether it works: `status`, `doctor` with its `checks`, and `forget`.

`status` and `doctor` only read: the network is used on request, and nothing is changed. `forget` deletes the state of a
session, and its traces from destinations that can delete.
"""
