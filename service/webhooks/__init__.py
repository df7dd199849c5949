"""Webhooks: signed event messages to endpoints that operators register (Standard Webhooks)."""
