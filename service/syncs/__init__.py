"""Syncs: domains that follow a folder of videos."""
