"""Hostile input: corrupted media files through the probing worker."""
