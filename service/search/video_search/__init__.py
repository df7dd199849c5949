"""Searches whose query is a video: similar videos, uploaded clips and captions."""
