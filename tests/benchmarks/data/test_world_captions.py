"""Captions: verb forms, order of events and variety of wording."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from benchmarks.data.world import DOMAINS, make_domain, sample_pretraining_clip
from benchmarks.data.world.captions import DETAILS, caption, verb_phrase
from benchmarks.data.world.domains.everyday_vocabulary import PRETRAIN_DOMAINS
from benchmarks.data.world.scene_model import Event
from benchmarks.data.world.scene_sampling import sample_scene


@pytest.mark.parametrize(
    ("text", "third", "ing"),
    [
        ("spin", "spins", "spinning"),
        ("drift | to the left", "drifts to the left", "drifting to the left"),
        ("close | in", "closes in", "closing in"),
        ("flash", "flashes", "flashing"),
        ("carry", "carries", "carrying"),
        ("sway", "sways", "swaying"),
        ("die", "dies", "dying"),
        ("zigzag", "zigzags", "zigzagging"),
        ("skid | around", "skids around", "skidding around"),
        ("curl | clockwise", "curls clockwise", "curling clockwise"),
        ("approach", "approaches", "approaching"),
        ("go | dark", "goes dark", "going dark"),
    ],
)
def test_verb_phrase_returns_third_person_and_participle(text: str, third: str, ing: str) -> None:
    phrase = verb_phrase(text)
    assert (phrase.third, phrase.ing) == (third, ing)


def test_captions_of_two_events_express_their_order() -> None:
    """Conjunctions such as "then", "before" and "after" are sufficient to parse the order from every sentence."""
    domain = PRETRAIN_DOMAINS["plain-shapes"]
    rng = random.Random(0)
    scene = sample_scene(domain, domain.entities[0], (Event("left"), Event("vanish")), rng, companion_share=0)
    verbs = {"left": ("move | left",), "vanish": ("vanish",)}
    frames = set()
    for _ in range(400):
        text = caption(scene, verbs, domain.sizes, frozenset(), rng)
        frames.add(re.sub(r"\ban? (round shape|\w+)", "X", text))
        left, gone = text.index("mov"), text.index("vanish")
        reversed_order = re.search(
            r"\bafter(?!wards)\b.*mov|^before|but only after", text
        ) and not text.startswith("after")
        first_is_left = gone < left if reversed_order else left < gone
        assert first_is_left, text
    assert len(frames) >= 15


@pytest.mark.parametrize("name", DOMAINS)
def test_captions_vary_in_wording_and_in_mentioned_details(name: str) -> None:
    clips = make_domain(name, seed=0, train=16, val=0, test=0)
    texts = [text for clip in clips for text in clip.captions]
    assert len(set(texts)) > 0.95 * len(texts)
    openings = {" ".join(text.split()[:2]) for text in texts}
    assert len(openings) > 30
    assert {len(text.split()) for text in texts} >= {4, 8, 12}
    hues = {word for hue in DOMAINS[name].hues for word in hue.words}
    with_hue = sum(any(re.search(rf"\b{re.escape(hue)}\b", text) for hue in hues) for text in texts)
    assert 0.6 * len(texts) < with_hue < len(texts)


def test_caption_mentions_all_selected_details() -> None:
    domain = DOMAINS["night-traffic"]
    rng = random.Random(3)
    for _ in range(50):
        scene = sample_scene(domain, domain.entities[1], (Event("left"),), rng, companion_share=1.0)
        text = caption(scene, domain.verbs, domain.sizes, frozenset(DETAILS), rng)
        assert any(phrase in text for phrase in scene.setting.phrases)
        assert any(word in text for word in scene.main.hue.words)
        assert scene.companion is not None
        assert any(word in text for word in scene.companion.entity.words)
        if scene.main.size_word:
            assert any(word in text for word in domain.sizes[scene.main.size_word])


def test_captions_have_correct_articles_and_limited_length() -> None:
    rng = np.random.default_rng(1)
    texts = [text for _ in range(500) for text in sample_pretraining_clip(rng).captions]
    texts += [
        text
        for name in DOMAINS
        for clip in make_domain(name, seed=2, train=3, val=0, test=0)
        for text in clip.captions
    ]
    for text in texts:
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", text), text
        assert "{" not in text
        assert "  " not in text
        assert len(text.split()) <= 32
