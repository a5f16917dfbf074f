"""Settings: one table of options, read from the environment and from files, narrowed by projects."""
