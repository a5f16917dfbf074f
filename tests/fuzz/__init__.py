"""Coverage-guided fuzzing of the line decoder and of complete transcripts; see `python -m tests.fuzz --help`."""
