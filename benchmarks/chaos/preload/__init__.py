"""Comes first on PYTHONPATH for the processes of a chaos run."""
