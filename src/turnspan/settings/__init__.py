"""Settings: one table of options, loaded from the environment and from files, restricted by projects."""
