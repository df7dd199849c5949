"""Webhooks: signed messages about events to endpoints that operators register (Standard Webhooks)."""
