"""Reads transcripts: finds sessions and subagents, follows growing files, yields traces from a position.

It only reads files; it imports `trace` and `transcript`, and knows nothing of destinations or state.
"""
