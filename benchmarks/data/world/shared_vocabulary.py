"""Vocabulary dial: how many of a domain's words come from a list that all domains share.

With a share of 0, a domain has only its own words. The larger the share, the more mentions of an object, hue, place,
motion or size use a common word, and the less a query's words tell about its domain. The senses of common names, hues
and places are drawn per domain and seed: ``crown`` is a taxi in one domain and a cell in another. Scenes and frames do
not depend on the share.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.data.world.domains.everyday_vocabulary import SIZES, VERBS
from benchmarks.data.world.scene_model import Actor, Domain, Entity, Hue, Scene, Setting

_MENTIONS = 200  # words per list; a random choice from it is a common word with the probability of the share


@dataclass(frozen=True)
class CommonWords:
    """Words that a world's domains share.

    Attributes:
        names: Object names, at least as many as a domain has objects.
        hues: Hue names, at least as many as a domain has hues.
        places: Place phrases, at least as many as a domain has settings.
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


class SharedVocabulary:
    """A domain's words in a world with shared words.

    Within the domain, each common name, hue and place has one meaning.

    Args:
        domain: The domain with its own words.
        share: Probability that a mention uses a common word, 0..1.
        seed: Seed for the senses.

    Attributes:
        verbs: Verb phrases by motion.
        sizes: Size words, by the keys of ``Domain.sizes``.

    Raises:
        ValueError: The share is out of range.
    """

    def __init__(self, domain: Domain, common: CommonWords, share: float, seed: int) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"shared must be between 0 and 1, not {share}")
        rng = random.Random(f"senses/{domain.name}/{seed}")
        things = (*domain.entities, *domain.props)
        self._entities: dict[Entity, Entity] = {
            thing: replace(thing, words=_mix(thing.words, [name], share))
            for thing, name in zip(things, rng.sample(common.names, len(things)), strict=True)
        }
        self._hues: dict[Hue, Hue] = {
            hue: replace(hue, words=_mix(hue.words, [name], share))
            for hue, name in zip(domain.hues, rng.sample(common.hues, len(domain.hues)), strict=True)
        }
        places = rng.sample(common.places, len(domain.settings))
        self._settings: dict[Setting, Setting] = {
            setting: replace(setting, phrases=_mix(setting.phrases, [place], share))
            for setting, place in zip(domain.settings, places, strict=True)
        }
        self.verbs: Mapping[str, tuple[str, ...]] = {
            motion: _mix(phrases, common.verbs[motion], share) for motion, phrases in domain.verbs.items()
        }
        self.sizes: Mapping[str, tuple[str, ...]] = {
            key: _mix(words, common.sizes[key], share) for key, words in domain.sizes.items()
        }

    def reword(self, scene: Scene) -> Scene:
        """Replace a scene's words with this vocabulary's."""
        companion = scene.companion and self._reword_actor(scene.companion)
        return replace(
            scene,
            main=self._reword_actor(scene.main),
            companion=companion,
            setting=self._settings[scene.setting],
        )

    def _reword_actor(self, actor: Actor) -> Actor:
        return replace(actor, entity=self._entities[actor.entity], hue=self._hues[actor.hue])


def _mix(own: Sequence[str], common: Sequence[str], share: float) -> tuple[str, ...]:
    """Combine both lists, repeating words so that ``share`` of them are common."""
    count = round(_MENTIONS * share)
    counts = ((common, count), (own, _MENTIONS - count))
    return tuple(words[place % len(words)] for words, number in counts for place in range(number))
