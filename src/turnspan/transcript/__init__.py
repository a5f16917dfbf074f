"""What Claude Code wrote. Pure: bytes in, values out."""
