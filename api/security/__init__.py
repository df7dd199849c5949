"""Senders and their rights: API keys, session cookies, scopes of routes, and origins that may send requests."""
