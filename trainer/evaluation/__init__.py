"""Evaluation of releases: galleries, retrieval metrics, recall rows and confidence fitting."""
