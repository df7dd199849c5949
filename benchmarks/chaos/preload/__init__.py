"""Folder at the beginning of PYTHONPATH of the processes of a chaos run."""
