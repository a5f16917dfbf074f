"""What happens to a trace between the reader and a backend.

`destinations` opens the configured backends, `policy` reduces a trace to what may be exported, and `deliver` acts on a
backend's verdict: commit, split, truncate, quarantine or back off. `state` keeps a cursor for each session and
destination, `marks` the events that wait for a locked session, `backoff` when a destination is contacted again.

The only room that writes to `state/` in turnspan's directory. It reads no transcripts.
"""
