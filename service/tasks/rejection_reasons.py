"""Reasons of rejected videos that other code recognizes."""

from __future__ import annotations

__all__ = ["SAME_CONTENT"]

SAME_CONTENT = "same content as "  # prefix of the reason of a duplicate, which does not count as a bad video
