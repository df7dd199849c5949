"""Hostile input: corrupted media files for the probing worker."""
