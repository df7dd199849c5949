"""Comparison of methods with joint training on worlds whose domains share words."""
