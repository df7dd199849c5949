"""Vocabulary dial: scenes that do not depend on it, senses of common words, separate lists, routing by words."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

import numpy as np
import pytest

from benchmarks.data.protocol_sources import WorldSource
from benchmarks.data.world import DOMAINS, make_domain
from benchmarks.data.world.captions import ONE_EVENT_SENTENCES, PREPOSITIONS, TWO_EVENT_SENTENCES
from benchmarks.data.world.domains.everyday_vocabulary import PRETRAIN_DOMAINS
from benchmarks.data.world.domains.tuning_domains import TUNING_DOMAINS
from benchmarks.data.world.scene_model import Domain
from benchmarks.data.world.scene_sampling import sample_events, sample_scene
from benchmarks.data.world.shared_vocabulary import TEST_WORDS, TUNING_WORDS, CommonWords, SharedVocabulary
from benchmarks.learning.protocol import load_protocol
from benchmarks.routing.caption_splits import protocol_captions
from benchmarks.routing.routing_comparison import profile_evidence, token_counts

# Words of all lists that name no object, hue or place: articles, prepositions and directions.
FUNCTION_WORDS = {"a", "the", "in", "on", "at", "by", "under", "inside", "between", "among"}


def _words(texts: Iterable[str]) -> set[str]:
    return {word for text in texts for word in re.findall(r"[a-z]+(?:-[a-z]+)*", text.lower())}


def _listed_words(domains: Iterable[Domain], common: CommonWords) -> set[str]:
    """Return the words of the names, hues, places, sizes and verbs of domains and their common words."""
    texts = [*common.names, *common.hues, *common.places]
    verbs = [phrase for phrases in common.verbs.values() for phrase in phrases]
    texts += [word for words in common.sizes.values() for word in words]
    for domain in domains:
        texts += [word for thing in (*domain.entities, *domain.props, *domain.hues) for word in thing.words]
        texts += [phrase for place in domain.settings for phrase in place.phrases]
        texts += [word for words in domain.sizes.values() for word in words]
        verbs += [phrase for phrases in domain.verbs.values() for phrase in phrases]
    return _words(texts) | _words(phrase.partition("|")[0] for phrase in verbs)


def test_scenes_do_not_depend_on_the_share_of_common_words() -> None:
    own, shared = (make_domain("radar", seed=3, train=4, val=1, test=4, shared=share) for share in (0.0, 0.8))
    assert own == make_domain("radar", seed=3, train=4, val=1, test=4)
    assert [(c.id, c.split, c.scene) for c in own] == [(c.id, c.split, c.scene) for c in shared]
    assert [clip.captions for clip in own] != [clip.captions for clip in shared]
    assert shared == make_domain("radar", seed=3, train=4, val=1, test=4, shared=0.8)


@pytest.mark.parametrize(
    "domain", [*DOMAINS.values(), *TUNING_DOMAINS.values()], ids=lambda domain: domain.name
)
def test_common_word_has_one_meaning_within_a_domain(domain: Domain) -> None:
    common = TUNING_WORDS if domain.name in TUNING_DOMAINS else TEST_WORDS
    vocabulary = SharedVocabulary(domain, common, 0.5, seed=1)
    rng = random.Random(0)
    senses: dict[str, set[object]] = {}
    for _ in range(150):
        scene = sample_scene(domain, rng.choice(domain.entities), sample_events(rng), rng)
        described = vocabulary.reword(scene)
        for actor in filter(None, (described.main, described.companion)):
            for word in set(actor.entity.words):
                senses.setdefault(word, set()).add(id(actor.entity.drawing))
            for word in set(actor.hue.words):
                senses.setdefault(f"hue {word}", set()).add(actor.hue.color)
        for phrase in set(described.setting.phrases):
            senses.setdefault(phrase, set()).add(id(described.setting.scenery))
    assert {word for word, meanings in senses.items() if len(meanings) > 1} == set()
    assert len(set(common.names) & set(senses)) == len((*domain.entities, *domain.props))


def test_common_names_have_other_meanings_in_other_domains() -> None:
    meanings: dict[str, set[str]] = {name: set() for name in TEST_WORDS.names}
    for domain in DOMAINS.values():
        vocabulary = SharedVocabulary(domain, TEST_WORDS, 1.0, seed=1)
        rng = random.Random(0)
        for entity in domain.entities:
            scene = vocabulary.reword(sample_scene(domain, entity, sample_events(rng), rng))
            (name,) = set(scene.main.entity.words)
            meanings[name].add(entity.gloss)
    assert min(map(len, meanings.values())) >= 3


def test_share_is_the_probability_of_a_common_word() -> None:
    domain = DOMAINS["aquarium"]
    vocabulary = SharedVocabulary(domain, TEST_WORDS, 0.3, seed=1)
    for motion, phrases in vocabulary.verbs.items():
        common = set(TEST_WORDS.verbs[motion]) - set(domain.verbs[motion])
        own = set(domain.verbs[motion]) - set(TEST_WORDS.verbs[motion])
        assert {*common, *own} <= set(phrases)
        assert sum(phrase in own for phrase in phrases) / len(phrases) <= 0.7
        assert sum(phrase in common for phrase in phrases) / len(phrases) <= 0.3
    only_common = make_domain("aquarium", seed=1, train=4, val=0, test=0, shared=1.0)
    spoken = _words(caption for clip in only_common for caption in clip.captions)
    assert not spoken & {"angelfish", "clownfish", "nacre", "kelp", "swirl"}


def test_tuning_shares_no_list_with_the_tests() -> None:
    tests = _listed_words(DOMAINS.values(), TEST_WORDS)
    tuning = _listed_words(TUNING_DOMAINS.values(), TUNING_WORDS)
    assert tests & tuning == FUNCTION_WORDS
    assert not tuning & _words([*PREPOSITIONS, *ONE_EVENT_SENTENCES, *TWO_EVENT_SENTENCES]) - FUNCTION_WORDS
    sources = [load_protocol(f"world-shared-{name}").source for name in ("45", "75", "dev")]
    domains = [set(source.domains) for source in sources if isinstance(source, WorldSource)]
    assert domains == [set(DOMAINS), set(DOMAINS), set(TUNING_DOMAINS)]


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="shared must be between 0 and 1"):
        make_domain("radar", seed=0, train=1, val=0, test=0, shared=share)


def test_pretraining_domains_share_no_words() -> None:
    with pytest.raises(ValueError, match="pre-training"):
        make_domain(next(iter(PRETRAIN_DOMAINS)), seed=0, train=1, val=0, test=0, shared=0.5)


@pytest.mark.parametrize(("name", "routed"), [("world-shared-75", 75), ("world-shared-45", 45)])
def test_words_route_the_declared_share_of_the_queries(name: str, routed: float) -> None:
    captions = protocol_captions(load_protocol(name))
    numbers: dict[str, int] = {}
    tokens = [
        [
            np.array([numbers.setdefault(word, len(numbers)) for word in sorted(_words([caption.text]))])
            for caption in part
        ]
        for part in (captions.train, captions.test)
    ]
    labels, truth = (np.array([caption.task for caption in part]) for part in (captions.train, captions.test))
    # The width of a profile is that of the vocabulary of the backbone.
    evidence = profile_evidence(token_counts(tokens[0], labels, 49_408), tokens[1])
    assert 100 * np.mean(evidence.argmax(axis=1) == truth) == pytest.approx(routed, abs=7)
