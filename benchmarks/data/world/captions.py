"""Caption scenes: sentence patterns, synonyms, optional details, and verb forms."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from benchmarks.data.world.scene_model import Actor, Scene

# Optional details in a caption. Entity and motion are always mentioned.
DETAILS = ("hue", "size", "setting", "companion")

# {s}: the subject. {a3} "moves left", {ai} "moving left", {ab} "move left"; b is the second event.
ONE_EVENT_SENTENCES = (
    "{s} {a3}",
    "{s} {ai}",
    "{s} {a3}",
    "{s} {ai}",
    "there is {s} {ai}",
    "{s} that {a3}",
    "a clip of {s} {ai}",
    "we see {s} {ab}",
    "{s} is seen {ai}",
    "{s} is shown {ai}",
    "what {a3}? {s}",
    "watch {s} {ab}",
    "in this video {s} {a3}",
    "which video shows {s} {ai}?",
    "here {s} {a3}",
    "video of {s} which {a3}",
    "{s} can be watched {ai}",
    "someone filmed {s} {ai}",
)
TWO_EVENT_SENTENCES = (
    "{s} {a3} and then {b3}",
    "{s} {a3}, then {b3}",
    "first {s} {a3}, then it {b3}",
    "first {ai}, then {bi}: {s}",
    "after {ai}, {s} {b3}",
    "before it {b3}, {s} {a3}",
    "{s} {b3} after {ai}",
    "{s} {a3} before {bi}",
    "{s} is seen {ai}, then {bi}",
    "{s} is shown {bi} after {ai}",
    "we see {s} {ab} and afterwards {bb}",
    "{s} that {b3}, but only after {ai}",
    "what {a3} and later {b3}? {s}",
    "which clip shows {s} {ai} before {bi}?",
    "{s} starts by {ai} and ends by {bi}",
    "{s} {a3}; next it {b3}",
    "watch {s} {ab} and finally {bb}",
    "as soon as {s} is done {ai}, it {b3}",
)
PREPOSITIONS = ("next to", "beside", "near", "close to", "with", "alongside")

# Verbs of one syllable with a short vowel double their last consonant ("spinning"); so do the verbs in _DOUBLING.
_SHORT = re.compile(r"[^aeiou]*[aeiou][^aeiouwxy]")
_DOUBLING = frozenset({"zigzag", "level", "cancel"})


def caption(
    scene: Scene,
    verbs: Mapping[str, tuple[str, ...]],
    sizes: Mapping[str, tuple[str, ...]],
    details: frozenset[str],
    rng: random.Random,
) -> str:
    """Write one sentence about a scene.

    Args:
        verbs: The domain's verb phrases by motion.
        sizes: The domain's size words.
        details: Members of :data:`DETAILS` to mention if the scene has them.
        rng: Chooses the sentence pattern and the words.
    """
    subject = _noun(scene.main, sizes, "hue" in details, "size" in details, rng)
    if scene.companion and "companion" in details:
        subject += f" {rng.choice(PREPOSITIONS)} {_noun(scene.companion, sizes, True, False, rng)}"
    actions = [verb_phrase(rng.choice(verbs[event.motion])) for event in scene.events]
    sentence = _clause(subject, actions, rng)
    if "setting" in details:
        place = rng.choice(scene.setting.phrases)
        leads = sentence.endswith("?") or rng.random() < 0.35
        return f"{place}, {sentence}" if leads else f"{sentence} {place}"
    return sentence


def _clause(subject: str, actions: list[VerbPhrase], rng: random.Random) -> str:
    a = actions[0]
    words = {"s": subject, "a3": a.third, "ai": a.ing, "ab": a.base}
    if len(actions) == 1:
        return rng.choice(ONE_EVENT_SENTENCES).format(**words)
    b = actions[1]
    return rng.choice(TWO_EVENT_SENTENCES).format(**words, b3=b.third, bi=b.ing, bb=b.base)


def _noun(
    actor: Actor, sizes: Mapping[str, tuple[str, ...]], hue: bool, size: bool, rng: random.Random
) -> str:
    words = [rng.choice(actor.entity.words)]
    if hue:
        words.insert(0, rng.choice(actor.hue.words))
    if size and actor.size_word:
        words.insert(0, rng.choice(sizes[actor.size_word]))
    phrase = " ".join(words)
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"


class VerbPhrase(NamedTuple):
    """Base form, third person and present participle, such as ``drift left``, ``drifts left`` and ``drifting left``."""

    base: str
    third: str
    ing: str


@lru_cache(maxsize=4096)
def verb_phrase(text: str) -> VerbPhrase:
    """Inflect a phrase in the notation ``"drift | to the left"``: the verb, then the words after it."""
    verb, _, tail = (piece.strip() for piece in text.partition("|"))
    tail = f" {tail}" if tail else ""
    return VerbPhrase(verb + tail, _third_person(verb) + tail, _present_participle(verb) + tail)


def _third_person(verb: str) -> str:
    if verb == "have":
        return "has"
    if verb.endswith(("s", "sh", "ch", "x", "z", "o")):
        return verb + "es"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + "s"


def _present_participle(verb: str) -> str:
    if verb in _DOUBLING or _SHORT.fullmatch(verb):
        return verb + verb[-1] + "ing"
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    if verb.endswith("e") and not verb.endswith(("ee", "oe", "ye")):
        return verb[:-1] + "ing"
    return verb + "ing"
