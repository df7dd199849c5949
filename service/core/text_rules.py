"""Rules for texts: keys and slugs of names, characters to strip from untrusted text, and text that can be stored."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from cinestrata_schemas.domain_names import JOINERS

_MAX_KEY_CHARS = 240
_MAX_SLUG_CHARS = 64
UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")  # NUL and lone surrogates

# Ranges for a regular expression class: C0 and C1 controls, line and paragraph separators, and bidi overrides, which
# can disguise how a text ends.
CONTROL_CHARACTERS = r"\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"


def name_key(name: str) -> str:
    """Compute a name's key. Names that differ only in case or in compatible character forms share a key."""
    plain = unicodedata.normalize("NFKC", name).translate(dict.fromkeys(map(ord, JOINERS)))
    return unicodedata.normalize("NFC", plain.casefold())[:_MAX_KEY_CHARS]


def make_slug(name: str) -> str:
    """Derive a slug from a name: lower-case ASCII letters, digits and ``-``; not unique."""
    from anyascii import anyascii  # a table of all characters, which API clients do not need

    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", anyascii(name)) if not name.isascii() else name
    slug = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:_MAX_SLUG_CHARS].rstrip("-")
    return slug or "domain"


def unused_slug(name: str, is_used: Callable[[str], bool]) -> str:
    """Derive a slug from a name, with the first number that makes it unique."""
    slug, number = make_slug(name), 1
    candidate = slug
    while is_used(candidate):
        number += 1
        candidate = f"{slug}-{number}"
    return candidate


def storable(text: str) -> str:
    """Replace NULs and lone surrogates by the replacement character."""
    return UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)
