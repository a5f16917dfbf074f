"""Claude Code sessions as traces, each turn exactly once."""

__version__ = "0.1.0"
