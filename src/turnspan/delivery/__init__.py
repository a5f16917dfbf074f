"""Between a trace and a backend: destinations, export policy, verdicts and their consequences, checkpoints."""
