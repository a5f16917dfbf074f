"""Traces in the terminal and as a page in the browser: sessions, turns, a waterfall, tokens and cost.

Rules:

- The page shows the same as `show`: what would be exported, masked, with the same texts and figures.
- It is served on localhost only, to a browser that has the access key, and loads nothing from other servers.
- Nothing is sent, and nothing but the index is written.
"""
