"""Vocabulary: words that pre-training does not use, and the meaning of words within a domain."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from benchmarks.data.world import DOMAINS, PRETRAIN_DOMAINS, make_domain, sample_pretraining_clip
from benchmarks.data.world.captions import ONE_EVENT_SENTENCES, PREPOSITIONS, TWO_EVENT_SENTENCES, verb_phrase
from benchmarks.data.world.domains.everyday_vocabulary import HUES, SHAPE_ENTITIES, SIZES, THINGS, VERBS


def _words(*texts: str) -> set[str]:
    return {word for text in texts for word in re.findall(r"[a-z]+(?:-[a-z]+)*", text.lower())}


def _pretraining_words() -> set[str]:
    texts = [word for thing in (*SHAPE_ENTITIES, *THINGS, *HUES) for word in thing.words]
    texts += [word for words in SIZES.values() for word in words]
    texts += [form for phrases in VERBS.values() for phrase in phrases for form in verb_phrase(phrase)]
    texts += [
        phrase
        for domain in PRETRAIN_DOMAINS.values()
        for place in domain.settings
        for phrase in place.phrases
    ]
    texts += [*PREPOSITIONS, *ONE_EVENT_SENTENCES, *TWO_EVENT_SENTENCES]
    rng = np.random.default_rng(0)
    texts += [text for _ in range(2000) for text in sample_pretraining_clip(rng).captions]
    return _words(*texts)


def test_pretraining_captions_contain_no_reserved_word() -> None:
    known = _pretraining_words()
    for domain in DOMAINS.values():
        assert len(domain.reserved) >= 10
        forms = {form for word in domain.reserved for form in (word, word + "s", *verb_phrase(word))}
        assert not known & forms, domain.name


@pytest.mark.parametrize("name", DOMAINS)
def test_domain_uses_all_of_its_reserved_words(name: str) -> None:
    domain = DOMAINS[name]
    texts = [word for thing in (*domain.entities, *domain.props, *domain.hues) for word in thing.words]
    texts += [phrase for phrases in domain.verbs.values() for phrase in phrases]
    assert domain.reserved <= _words(*texts)


@pytest.mark.parametrize("name", DOMAINS)
def test_word_has_one_meaning_within_a_domain(name: str) -> None:
    domain = DOMAINS[name]
    nouns = Counter(word for thing in (*domain.entities, *domain.props) for word in thing.words)
    hues = Counter(word for hue in domain.hues for word in hue.words)
    verbs = Counter(phrase for phrases in domain.verbs.values() for phrase in phrases)
    for counts in (nouns, hues, verbs):
        assert max(counts.values()) == 1, counts.most_common(3)
    assert set(domain.verbs) == set(VERBS)


def test_pretraining_uses_every_plain_color() -> None:
    plain = {word for hue in HUES for word in hue.words}
    assert {hue.words[-1] for domain in DOMAINS.values() for hue in domain.hues} <= plain


def test_benchmark_domains_share_some_words_with_pretraining() -> None:
    known = _pretraining_words()
    for name in DOMAINS:
        counts = Counter(
            word
            for clip in make_domain(name, seed=0, train=4, val=0, test=0)
            for text in clip.captions
            for word in _words(text)
        )
        share = sum(count for word, count in counts.items() if word in known) / counts.total()
        assert 0.35 < share < 0.85, (name, share)
