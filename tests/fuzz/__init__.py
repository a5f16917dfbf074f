"""Coverage-guided fuzzing: any bytes, as lines and as whole transcripts; `python -m tests.fuzz` says how."""
