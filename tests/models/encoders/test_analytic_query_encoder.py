"""The analytic query encoder encodes each text once, and pinned vectors never change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.adapters.analytic_maps import AnalyticQueryMap, VectorLayout
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from models.backbones.bert_text_tower import BertBackbone
from models.encoders.encoder_registry import open_query_encoder
from models.encoders.query_encoder import QueryEncoder
from models.releases.release_state import ReleaseState
from tests.models.adapters.query_map_reference import reference_vectors
from tests.models.encoders.small_releases import small_release

TEXTS = ["a man lifts a bar", "two dogs run", "a woman plays the violin on a stage in front of many people"]
WEIGHT = 0.6


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load_backbone("small", frames=2)


@pytest.fixture(scope="module")
def releases(backbone: Backbone) -> dict[str, ReleaseState]:
    """Releases of six tasks by task; the third is frozen."""
    return {f"t{n}": _release(backbone, n) for n in range(6)}


def _release(backbone: Backbone, number: int) -> ReleaseState:
    layout, rng = VectorLayout(backbone.semantic_dim, WEIGHT), np.random.default_rng(number)
    tokens = backbone.tokenize(TEXTS[: 1 + number % 3]).unique().numpy()
    mean = rng.standard_normal(layout.semantic, np.float32) / 20
    query_map = AnalyticQueryMap(
        center=mean,
        caption_mean=mean,
        tokens=tokens,
        token_weights=rng.random(len(tokens), np.float32) + 1,
        unknown_token_weight=np.array(3, np.float32),
        lexicon=(rng.standard_normal((len(tokens), layout.lexical)) / 12).astype(np.float16),
    )
    tensors = {f"query.{name}": array for name, array in query_map.tensors().items()}
    tensors |= {
        "evidence.scatter": np.eye(layout.semantic, dtype=np.float32) * (1 + number),
        "evidence.freedom": np.array(9, np.float32),
    }
    kind = "frozen" if number == 2 else "analytic"
    release = small_release(backbone, kind, {}, [f"t{n}" for n in range(number + 1)])
    return replace(
        release,
        tensors=tensors,
        config={"semantic_weight": WEIGHT, "caption_evidence": 0.5, "word_evidence": 0.25},
    )


def _encode(encoder: QueryEncoder, texts: list[str], tasks: list[str], mode: str = "pinned") -> np.ndarray:
    pairs = [(text, task) for text in texts for task in tasks]
    tokens = encoder.tokenize([text for text, _ in pairs])
    return encoder.encode_pairs(tokens, [task for _, task in pairs], mode).reshape(len(texts), len(tasks), -1)


def test_pairs_equal_the_vectors_of_the_map(backbone: Backbone, releases: dict[str, ReleaseState]) -> None:
    encoder = open_query_encoder(backbone, releases["t5"], releases)
    vectors = _encode(encoder, TEXTS, encoder.tasks)
    np.testing.assert_allclose(vectors, encoder.encode(TEXTS, encoder.tasks, "pinned"), atol=1e-6)
    frozen = encoder.encode_with_backbone(TEXTS)
    np.testing.assert_allclose(vectors[:, 2], frozen, atol=1e-6)
    layout = VectorLayout(backbone.semantic_dim, WEIGHT)
    for task in (0, 1, 3, 4, 5):
        tensors = releases[f"t{task}"].tensors
        query_map = AnalyticQueryMap(
            **{name[6:]: t for name, t in tensors.items() if name.startswith("query.")}
        )
        for row, text in enumerate(encoder.tokenize(TEXTS)):
            words = text.pieces[None]
            expected = reference_vectors(query_map, frozen[row : row + 1], words, layout)[0]
            np.testing.assert_allclose(vectors[row, task], expected, atol=1e-6)


def test_pinned_vectors_do_not_depend_on_the_batch_or_the_release(
    backbone: Backbone, releases: dict[str, ReleaseState]
) -> None:
    previous = open_query_encoder(backbone, releases["t3"], releases)
    before = _encode(previous, TEXTS, previous.tasks)
    for encoder in (
        open_query_encoder(backbone, releases["t5"], releases),
        open_query_encoder(backbone, releases["t5"], releases, previous, previous.tasks),
        open_query_encoder(backbone, releases["t5"], releases, previous, ["t0", "t2", "t3"]),
    ):
        assert np.array_equal(_encode(encoder, TEXTS, encoder.tasks)[:, :4], before)
        for row, text in enumerate(TEXTS):
            assert np.array_equal(_encode(encoder, [text], ["t1"])[0, 0], before[row, 1])
        for task in previous.tasks:
            assert encoder.encoding_identity(task, "pinned") == previous.encoding_identity(task, "pinned")


def test_text_passes_the_tower_once(
    backbone: Backbone, releases: dict[str, ReleaseState], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = open_query_encoder(backbone, releases["t5"], releases)
    passes: list[int] = []
    text_vectors = BertBackbone.text_vectors

    def count(tower: BertBackbone, ids: torch.Tensor) -> torch.Tensor:
        passes.append(len(ids))
        return text_vectors(tower, ids)

    monkeypatch.setattr(BertBackbone, "text_vectors", count)
    # Of no other test.
    texts = ["a cat sleeps on a sofa", "rain falls on a lake", "a train leaves the station"]
    tokens = encoder.tokenize(texts)
    encoder.routing_evidence(tokens, encoder.tasks)
    encoder.routing_evidence(tokens[:1], ["t0", "t1"])
    _encode(encoder, texts, encoder.tasks)
    _encode(encoder, texts, ["t1"])
    assert passes == [1, 1, 1]
    for following in (
        open_query_encoder(backbone, releases["t5"], releases, encoder, encoder.tasks),
        open_query_encoder(backbone, releases["t4"], releases),  # of the next task of a worker
    ):
        _encode(following, texts, following.tasks)
        assert passes == [1, 1, 1]


def test_evidence_of_some_tasks_equals_that_of_all(
    backbone: Backbone, releases: dict[str, ReleaseState]
) -> None:
    encoder = open_query_encoder(backbone, releases["t5"], releases)
    tokens = encoder.tokenize(TEXTS)
    every, some = (encoder.routing_evidence(tokens, tasks) for tasks in (encoder.tasks, ["t4", "t0"]))
    assert every is not None
    assert some is not None
    np.testing.assert_allclose(some, every[:, [4, 0]], rtol=1e-6)
    assert (every[:, 2] == 0).all()  # a frozen release has no mean caption
