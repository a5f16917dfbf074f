"""The backends against real servers on loopback, and against the SDK's own encoder."""
