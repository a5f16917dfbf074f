"""The commands, and what they share: printing, progress, completion."""
