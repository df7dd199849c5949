"""Characters that control a terminal or the direction of writing, in texts of other origin."""

from __future__ import annotations

# Ranges of a character class of a regular expression: C0 and C1 controls, separators of lines and paragraphs, and
# overrides of the writing direction, with which a text shows another ending than it has.
CONTROL_CHARACTERS = r"\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"
