"""Execution of text searches: planning, scanning, confidence, moments and responses."""
