"""Domain names in any script: their normal form, and what they may contain.

A name consists of letters, marks, digits, single spaces, plus signs, and punctuation other than slash and backslash.
Invisible, control and bidi-override characters are refused, because they make names look equal or display differently;
other symbols and emoji, because some have several encodings that normalization does not unify.
"""

from __future__ import annotations

import re
import unicodedata

MAX_NAME_CHARS = 80  # width of the column
JOINERS = "\u200c\u200d"  # needed to spell Persian and Indic scripts
# Letters and marks without a glyph: fillers, grapheme joiner, variation selectors.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_HINT = "Use letters of any script, digits, spaces and punctuation, without '/' and '\\'."


def normalize_name(name: str) -> str:
    """Normalize a name: composed characters (NFC) and single spaces."""
    spaced = "".join(" " if unicodedata.category(c) == "Zs" else c for c in name)
    return unicodedata.normalize("NFC", re.sub(" +", " ", spaced).strip(" "))


def name_problem(name: str) -> tuple[str, str] | None:
    """Return the error and hint for a normalized name; None if it is valid."""
    for place, c in enumerate(name):
        category = unicodedata.category(c)
        if c in JOINERS:
            around = name[max(place - 1, 0) : place] + name[place + 1 : place + 2]
            if len(around) == 2 and all(unicodedata.category(other)[0] in "LM" for other in around):
                continue
        elif (category[0] in "LMNP" or c in " +") and c not in "/\\" and not _INVISIBLE.match(c):
            continue
        shown = (
            c if category[0] in "LMNPS" and c.isprintable() and not _INVISIBLE.match(c) else f"U+{ord(c):04X}"
        )
        return f"The name contains the character {shown}.", _HINT
    if not any(unicodedata.category(c)[0] in "LN" for c in name):
        return "The name contains neither a letter nor a digit.", _HINT
    if unicodedata.category(name[0])[0] == "M":
        return "The name begins with a combining mark.", "Begin the name with a letter or digit."
    return None
