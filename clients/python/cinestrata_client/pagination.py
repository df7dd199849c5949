"""Pages of lists: the call of the next page, from the cursor in an answer or in its header ``Link``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import httpx
from pydantic import BaseModel

from cinestrata_client.calls import Call

__all__ = ["next_page", "page_items"]

T = TypeVar("T")


def page_items(page: list[Any] | BaseModel) -> list[Any]:
    """Return the entries of a page: the page itself, or its only list of models."""
    if isinstance(page, list):
        return page
    lists = [value for name, value in page if isinstance(value, list) and name not in _NO_ENTRIES]
    return list(lists[0])


_NO_ENTRIES = frozenset({"routing"})  # of an answer to a search


def next_page(call: Call[T], page: T, response: httpx.Response) -> Call[T] | None:
    """Return the call of the next page; None after the last page."""
    cursor = getattr(page, "next_cursor", None)
    if cursor is None and "next" in response.links:
        query = parse_qs(urlsplit(response.links["next"]["url"]).query)
        cursor = query.get("cursor", [None])[0]
    return None if cursor is None else replace(call, query={**call.query, "cursor": cursor})
