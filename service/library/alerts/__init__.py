"""Alerts: thresholds of measures and of failed tasks, and their crossings."""
