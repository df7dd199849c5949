"""Tasks: commands, archives, validation, probing, messages and life cycle."""
