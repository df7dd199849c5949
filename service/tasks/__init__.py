"""Tasks: commands, archives, validation, probing, messages and the life cycle."""
