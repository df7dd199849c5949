"""Encoder families and adapters of rivals."""
