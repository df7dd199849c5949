"""Routing of queries to tasks, and the confidence of search results."""
