"""The traces that are made of turns: model, ids, content, cost, totals, and what of it may be exported.

Pure: values in, values out. The same turn gives the same trace, byte for byte. It knows no files, no clock and no
destination.
"""
