"""Coverage-guided fuzzing: any bytes, as lines and as complete transcripts; `python -m tests.fuzz` says how."""
