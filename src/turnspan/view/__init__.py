"""Traces as a page that a person looks at: sessions, turns, a waterfall, tokens and cost.

Rules:

- It shows what `show` shows: what would leave this machine, masked, in the same words and with the same figures.
- Only this machine is served, and of it only who was told the key. Nothing of the page comes from elsewhere.
- Nothing is written, and nothing is sent.
"""
