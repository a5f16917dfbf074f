"""The sessions of `turnspan demo`, and the script that writes them: `python -m tests.demo`."""
