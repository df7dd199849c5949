"""Compiled towers compute what torch does, follow changes of weights, and are replaced by torch where they fail."""

from __future__ import annotations

import copy
import io
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import structlog
import torch
from structlog.testing import capture_logs
from torch import Tensor
from torch.nn import functional as F

from models.backbones import compiled_towers, frozen_tower
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from models.backbones.compiled_towers import BertEngine, EfficientNetEngine
from models.backbones.frozen_tower import EngineUnavailable, FrozenTower, require_equal, require_similar
from models.backbones.tower_computation import mixed_precision
from models.backbones.tower_threads import map_in_threads
from models.encoders.tower_forward import encode_frames, encode_texts
from models.encoders.tower_query_backbone import pack_text_tower
from models.releases.release_files import SELF_TEST_TEXTS
from service.search.snapshots.self_test import SELF_TEST_TOLERANCE
from tests.random_frames import random_frames

_SENTENCE = "a red dog cooks pasta near two quick cars while the old unbelievable jellyfish sings"
WORDS = _SENTENCE.split()
TORCH = f"torch {torch.__version__}"


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load_backbone("small", frames=2)


@pytest.fixture(scope="module")
def in_torch(backbone: Backbone) -> Backbone:
    """The same weights without engine."""
    return copy.deepcopy(backbone)


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture
def _no_previous_warning(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(frozen_tower, "log", structlog.get_logger())  # the one of the module may be cached
    frozen_tower.warn_unavailable.cache_clear()
    yield
    frozen_tower.warn_unavailable.cache_clear()


def test_features_equal_those_of_torch(backbone: Backbone, in_torch: Backbone) -> None:
    frames = random_frames(3, 2, 3, size=224)
    assert backbone.engine.startswith("ONNX Runtime")
    assert in_torch.engine == TORCH
    features, expected = backbone.video_features(frames), in_torch.video_features(frames)
    torch.testing.assert_close(features, expected, atol=1e-5 * float(expected.max()), rtol=0)
    videos = [encode_frames(tower, frames)[0] for tower in (backbone, in_torch)]
    torch.testing.assert_close(*videos, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_text_vectors_are_those_of_torch_up_to_rounded_weights(
    backbone: Backbone, in_torch: Backbone
) -> None:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, rng.integers(1, 30))) for _ in range(60)]
    texts += ["", "日本語 naïve ﬁ [PAD] [SEP]", "word " * 200]
    ids = backbone.tokenize(texts)
    vectors, expected = encode_texts(backbone, ids)[0], encode_texts(in_torch, ids)[0]
    cosines = (vectors * expected).sum(dim=-1)
    assert cosines.min() > 0.99
    assert cosines.median() > 0.999
    order = (vectors @ vectors.T).fill_diagonal_(0), (expected @ expected.T).fill_diagonal_(0)
    torch.testing.assert_close(*order, atol=0.02, rtol=0)
    alone = torch.cat([encode_texts(backbone, backbone.tokenize([text]))[0] for text in texts])
    torch.testing.assert_close(vectors, alone, atol=1e-6, rtol=0)
    ids = backbone.tokenize(SELF_TEST_TEXTS)
    differences = (encode_texts(backbone, ids)[0] - encode_texts(in_torch, ids)[0]).norm(dim=-1)
    assert 0 < differences.max() < SELF_TEST_TOLERANCE / 2, "the release passes its self-test"


def test_threads_share_a_batch(
    backbone: Backbone, in_torch: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, frames = backbone.tokenize(WORDS * 20), random_frames(4, 1, 5, size=224)
    expected = backbone.text_vectors(ids), backbone.video_features(frames)
    monkeypatch.setattr(compiled_towers, "_BATCH_TOKENS", 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for together, one_by_one in zip(
        (backbone.text_vectors(ids), backbone.video_features(frames)), expected, strict=True
    ):
        torch.testing.assert_close(together, one_by_one, atol=1e-6, rtol=0)


def test_errors_of_other_threads_reach_the_caller() -> None:
    def fail(item: int) -> int:
        raise ValueError(f"item {item}")

    assert map_in_threads(abs, range(-5, 0), 2) == [5, 4, 3, 2, 1]
    assert map_in_threads(abs, [], 2) == []
    with pytest.raises(ValueError, match="item"):
        map_in_threads(fail, range(5), 2)


@pytest.mark.slow
def test_copies_and_other_weights_run_in_torch(backbone: Backbone) -> None:
    ids, frames = backbone.tokenize(["a dog", "two red cars"]), random_frames(5, 1, 1, size=224)
    file = io.BytesIO()
    torch.save(backbone, file)
    file.seek(0)
    stored = torch.load(file, weights_only=False)
    copies = [backbone.clone(), backbone.clone_image_tower(), copy.deepcopy(backbone), stored]
    assert {tower.engine for tower in copies} == {TORCH}
    changed = load_backbone("small", frames=2)
    assert changed.engine == backbone.engine
    changed.load_tensors({name: 1.5 * tensor for name, tensor in backbone.tensors().items()})
    assert changed.engine == TORCH
    assert (encode_texts(changed, ids) - encode_texts(backbone, ids)).abs().max() > 1e-3
    assert torch.equal(changed.video_features(frames), backbone.video_features(frames))  # it is frozen


def test_trained_text_tower_is_compiled_for_queries(backbone: Backbone) -> None:
    trained = backbone.clone()
    trained.load_tensors({name: 1.1 * tensor for name, tensor in trained.tensors().items()})
    ids = backbone.tokenize(["a dog", "two red cars"])
    expected = encode_texts(trained, ids)
    compiled: Any = pack_text_tower(trained)
    engine = compiled._frozen_text.engine()
    assert engine is not None
    assert F.cosine_similarity(encode_texts(compiled, ids)[0], expected[0]).min() > 0.99
    assert (F.cosine_similarity(encode_texts(backbone, ids)[0], expected[0]) < 0.99).all(), "other weights"
    assert pack_text_tower(trained) is compiled
    assert compiled._frozen_text.engine() is engine, "it is compiled once"


def test_bfloat16_runs_in_torch_except_for_the_frozen_network(backbone: Backbone, in_torch: Backbone) -> None:
    ids, frames = backbone.tokenize(["a dog"]), random_frames(6, 1, 1, size=224)
    with mixed_precision():
        assert torch.equal(encode_texts(backbone, ids), encode_texts(in_torch, ids))
        videos = [backbone.embed_frames(frames), in_torch.embed_frames(frames)]
    torch.testing.assert_close(*videos, atol=1e-4, rtol=0)


@pytest.mark.usefixtures("_no_previous_warning")
def test_broken_library_is_replaced_by_torch_with_one_warning(
    in_torch: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "models.backbones.compiled_towers")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    backbone = load_backbone("small", frames=2)
    ids, frames = backbone.tokenize(["a dog"]), random_frames(7, 1, 1, size=224)
    with capture_logs() as logs:
        for _ in range(2):
            assert torch.equal(encode_texts(backbone, ids), encode_texts(in_torch, ids))
            assert torch.equal(backbone.video_features(frames), in_torch.video_features(frames))
    assert backbone.engine == TORCH
    assert [entry["event"] for entry in logs] == ["engine_unavailable"]
    assert "onnxruntime" in logs[0]["error"]


@pytest.mark.parametrize(
    ("engine", "factor", "error"),
    [
        (BertEngine, 1.001, "their cosine is 1.0"),
        (BertEngine, np.linspace(1, 2, 512, dtype=np.float32), "their cosine is"),
        (EfficientNetEngine, 1.001, "features differ from torch by up to"),
    ],
)
@pytest.mark.usefixtures("_no_previous_warning")
def test_engine_with_other_results_is_not_used(
    engine: type[Any], factor: Any, error: str, in_torch: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = engine.__call__
    monkeypatch.setattr(engine, "__call__", lambda *arguments: compute(*arguments) * factor)
    backbone = load_backbone("small", frames=2)
    ids, frames = backbone.tokenize(["a dog"]), random_frames(7, 1, 1, size=224)

    def compute_both(towers: Backbone) -> dict[type[Any], Tensor]:
        return {BertEngine: encode_texts(towers, ids)[0], EfficientNetEngine: towers.video_features(frames)}

    with capture_logs() as logs:
        vectors = compute_both(backbone)
    assert torch.equal(vectors[engine], compute_both(in_torch)[engine])
    assert error in logs[0]["error"]
    assert backbone.engine == TORCH


def test_results_that_are_not_numbers_are_refused() -> None:
    values, unknown = np.ones((1, 1), np.float32), np.full((1, 1), np.nan, np.float32)
    for require in (require_equal, require_similar):
        require(values, values)
        with pytest.raises(EngineUnavailable, match="differ"):
            require(unknown, values)
    assert FrozenTower[str]().engine() is None
