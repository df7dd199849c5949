"""Common words: names, hues, places, verbs and sizes that all domains of a world with shared words use.

The worlds for tests and those for tuning have separate lists. A common verb or size has the same meaning in every domain.
A common name, hue or place has another meaning in each domain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.data.world.domains.everyday_vocabulary import SIZES, VERBS

__all__ = ["TEST_WORDS", "TUNING_WORDS", "CommonWords"]


@dataclass(frozen=True)
class CommonWords:
    """Words that the domains of a world share.

    Attributes:
        names: Names of objects, at least as many as a domain has objects.
        hues: Names of hues, at least as many as a domain has hues.
        places: Phrases for places, at least as many as a domain has settings.
        verbs: Verb phrases by motion.
        sizes: Size words, by the keys of ``Domain.sizes``.
    """

    names: tuple[str, ...]
    hues: tuple[str, ...]
    places: tuple[str, ...]
    verbs: Mapping[str, tuple[str, ...]]
    sizes: Mapping[str, tuple[str, ...]]


TEST_WORDS = CommonWords(
    names=("hawk", "button", "horn", "crown", "jack", "nut", "hook", "plug", "dial"),
    hues=("deep", "vivid", "dull", "soft", "faded", "glossy"),
    places=("at the edge", "in the corner", "at the back", "in the center"),
    verbs=VERBS,
    sizes={key: words[:2] for key, words in SIZES.items()},
)

TUNING_WORDS = CommonWords(
    names=("rook", "knob", "bell", "cap", "pin", "chip", "cob", "peg", "knot"),
    hues=("stark", "muted", "gentle", "crisp", "hazy", "tinted"),
    places=("outdoors", "in the foreground", "halfway along", "in a yard"),
    verbs={
        "left": ("shuffle | left", "march | left"),
        "right": ("shuffle | right", "march | right"),
        "up": ("soar", "mount"),
        "down": ("land", "collapse"),
        "clockwise": ("patrol | clockwise", "tour | clockwise"),
        "counterclockwise": ("patrol | counter-clockwise", "tour | counter-clockwise"),
        "bounce": ("jiggle", "bump | up and down"),
        "grow": ("enlarge", "widen"),
        "shrink": ("narrow", "diminish"),
        "appear": ("arise", "kick | off"),
        "vanish": ("depart", "escape"),
        "spin": ("twist", "swivel"),
        "zigzag": ("wag", "meander"),
        "blink": ("wink", "strobe"),
        "stop": ("halt", "linger"),
    },
    sizes={"small": ("tiny",), "large": ("huge",)},
)
