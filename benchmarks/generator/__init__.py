"""Parts of `generate.py`: templates, writing, tools, responses, sessions."""
