"""Searchable shards, and the vector stores that hold their rows."""
