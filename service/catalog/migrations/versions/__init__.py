"""Migrations in order of their numbers."""
