"""The sessions of `turnspan demo`.

`sessions.jsonl.gz` holds the transcripts of four weeks of made-up work, written by `python -m tests.demo`. Each begins
with a line that has its path and the fields that its rows have in common. They are copied to a temporary directory with
their times moved to the recent past, and read like any other session: nothing of the demo is known elsewhere.
"""
