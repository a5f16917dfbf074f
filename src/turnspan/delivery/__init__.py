"""Between a trace and a backend: destinations, the export policy, verdicts, checkpoints, pending events and backoff."""
