"""Tasks: commands on them, their manifests and uploads, probing, messages and life cycle."""
