"""A domain's clips in training, validation and test splits, with groups that differ only in the order of frames."""

from __future__ import annotations

import random
from dataclasses import replace

from benchmarks.data.world.captions import DETAILS, caption
from benchmarks.data.world.domains import DOMAINS
from benchmarks.data.world.motion import reverse
from benchmarks.data.world.scene_model import Clip, Domain, Entity, Scene
from benchmarks.data.world.scene_sampling import sample_events, sample_scene

# Share of samples added together with their time reversal, so that more than half of all clips have a counterpart.
_PAIRED = 0.5
# Consecutive duplicate samples after which a domain counts as exhausted.
_MAX_ATTEMPTS = 3000
# Probability that a caption mentions each optional detail.
_MENTION_PROBABILITY = {"hue": 0.85, "size": 0.4, "setting": 0.35, "companion": 0.6}
Attributes = tuple[str, ...]


def make_domain(
    name: str,
    *,
    seed: int,
    train: int = 16,
    val: int = 4,
    test: int = 40,
    categories: int | None = None,
    captions: int = 5,
) -> list[Clip]:
    """Create a domain's clips; equal arguments give equal clips in every process.

    Args:
        name: Key of ``DOMAINS``.
        seed: Seed; another seed gives other clips of the same domain.
        train: Training clips per category.
        val: Validation clips per category.
        test: Test clips per category, which do not depend on the sizes of the other splits.
        categories: Number of categories, starting with the first entity; all by default.
        captions: Number of distinct captions per clip.

    Raises:
        ValueError: The domain is unknown, or a count is out of range.
    """
    domain = DOMAINS.get(name)
    if domain is None:
        raise ValueError(f"domain: {name!r} is unknown; choose one of {', '.join(DOMAINS)}")
    if min(train, val, test) < 0 or captions < 1:
        raise ValueError("train, val and test must be at least 0 and captions at least 1")
    kinds = domain.entities[:categories]
    if categories is not None and not 1 <= categories <= len(domain.entities):
        raise ValueError(f"categories: {name} has 1 to {len(domain.entities)}, not {categories}")
    seen: set[Attributes] = set()
    clips: list[Clip] = []
    for split, count in (("test", test), ("val", val), ("train", train)):
        scenes = [
            (kind, scene) for kind in kinds for scene in _scenes(domain, kind, split, count, seed, seen)
        ]
        rivals: dict[Attributes, list[Attributes]] = {}
        if split == "test":
            for _, scene in scenes:
                rivals.setdefault(_required_attributes(scene.attributes), []).append(scene.attributes)
        serial = 0
        for index, (kind, scene) in enumerate(scenes):
            serial = 0 if index == 0 or scenes[index - 1][0] is not kind else serial + 1
            slug = kind.name.replace(" ", "_")
            identifier = f"{name}-{seed}-{slug}-{split}-{serial:03d}"
            rng = random.Random(f"captions/{identifier}")
            scene_rivals = rivals.get(_required_attributes(scene.attributes), [])
            texts = _captions(domain, scene, captions, scene_rivals, rng)
            clips.append(Clip(identifier, name, kind.name, split, scene, texts, scene.look_seed))
    return clips


def _scenes(
    domain: Domain, kind: Entity, split: str, count: int, seed: int, seen: set[Attributes]
) -> list[Scene]:
    """Sample ``count`` scenes whose attributes are not in ``seen``, and add their attributes to it."""
    # random.Random hashes string seeds with SHA-512, which is the same in every process.
    rng = random.Random(f"{domain.name}/{seed}/{kind.name}/{split}")
    scenes: list[Scene] = []
    attempts = 0
    while len(scenes) < count:
        attempts += 1
        if attempts > _MAX_ATTEMPTS:
            raise ValueError(
                f"{split}: {count} clips of {kind.name!r} are more than {domain.name} has distinct scenes for"
            )
        scene = sample_scene(domain, kind, sample_events(rng), rng)
        group = [scene]
        if rng.random() < _PAIRED and count - len(scenes) >= 2:
            events, start = reverse(scene.events, scene.start)
            group.append(replace(scene, events=events, start=start))
        attributes = {member.attributes for member in group}
        if len(attributes) < len(group) or attributes & seen:
            continue
        attempts = 0
        seen |= attributes
        scenes += group
    return scenes


def _captions(
    domain: Domain,
    scene: Scene,
    count: int,
    rivals: list[Attributes],
    rng: random.Random,
) -> tuple[str, ...]:
    texts: dict[str, None] = {}
    attempts = 0
    while len(texts) < count and attempts < 50 * count:
        attempts += 1
        details = {detail for detail, share in _MENTION_PROBABILITY.items() if rng.random() < share}
        details = _add_distinguishing_details(scene.attributes, details, rivals, rng)
        texts[caption(scene, domain.verbs, domain.sizes, frozenset(details), rng)] = None
    return tuple(texts)


def _add_distinguishing_details(
    attributes: Attributes, details: set[str], rivals: list[Attributes], rng: random.Random
) -> set[str]:
    """Add details until the caption fits only one of the rivals (the clip itself), or all details are used."""
    missing = [detail for detail in DETAILS if detail not in details]
    rng.shuffle(missing)
    while missing and sum(_describes_rival(attributes, rival, details) for rival in rivals) > 1:
        details.add(missing.pop())
    return details


def _required_attributes(attributes: Attributes) -> Attributes:
    """Keep the entity and motion, which every caption mentions."""
    return attributes[0], attributes[6]


def _describes_rival(attributes: Attributes, rival: Attributes, details: set[str]) -> bool:
    """Check whether a caption of ``attributes`` with these details also fits a rival with equal entity and motion."""
    _, hue, size, setting, other, other_hue, _ = attributes
    return (
        ("hue" not in details or hue == rival[1])
        and ("size" not in details or not size or size == rival[2])
        and ("setting" not in details or setting == rival[3])
        and ("companion" not in details or not other or (other, other_hue) == rival[4:6])
    )
