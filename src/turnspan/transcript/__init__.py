"""Claude Code's transcript format: JSONL lines become entries, entries become turns.

Pure: bytes in, values out. It imports nothing of ours but `lazy`, and no other room knows Claude Code's field names.
"""
