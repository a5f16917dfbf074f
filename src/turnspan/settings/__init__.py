"""The settings in force, and where each of them comes from.

`options` is the table of all settings. `config` loads them from the environment and from config.toml; `project` is what
a project may change: it can restrict the export, never widen it. It reads settings files, and writes only config.toml.
"""
