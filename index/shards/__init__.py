"""Shards that can be searched, and the vector stores that hold their rows."""
