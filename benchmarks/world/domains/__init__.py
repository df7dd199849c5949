"""Domains as readable data."""
