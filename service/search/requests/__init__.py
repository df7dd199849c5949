"""Parsing and validation of search requests: fields, filters and cursors."""
