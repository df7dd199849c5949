"""Measure ingest: throughput against bounds, and libraries of many videos or many domains."""
