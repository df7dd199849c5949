"""Run text searches: planning, scanning, confidence, moments and responses."""
