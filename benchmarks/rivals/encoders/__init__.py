"""Encoder families and adapters for rivals."""
