"""The settings in force, and where each of them comes from.

`options` is the table of all settings, `matrix` says which source may set, restrict or hide each. `config` loads them
from the environment and from config.toml, `project` from a project's file. Only config.toml is written.
"""
