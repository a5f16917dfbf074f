"""Claude Code's own files: settings.json, plugins, registered hooks and the cleanup period.

The only room that reads or edits them. `settings_reader` is the one reader; `settings_json` is the editor.
"""
