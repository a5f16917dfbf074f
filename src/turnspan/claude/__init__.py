"""Claude Code's own files: settings.json, plugins and registered hooks."""
