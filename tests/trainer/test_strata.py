"""Strata: what it trains, what stays, and that nothing already learned ever moves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import open_query_encoder, read_query_release
from models.releases.release_files import write_release
from tests.trainer.conftest import untrained_backbone
from trainer.losses import in_task_loss
from trainer.methods import Method, MethodError, start_method
from trainer.task_data import Clip, StoredVectors, TaskData
from trainer.training_loop import learn_task
from trainer.video_embedding import embed_clips

FRAMES = 2
TEXTS = ["a red circle moves left", "a square vanishes", "two stars spin"]
SMALL = {"epochs": 2, "batch_size": 3, "rank": 2, "image_rank": 2}


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    loaded = untrained_backbone(FRAMES)
    assert isinstance(loaded, Backbone)
    return loaded


def _task(folder: Path, name: str, captions: list[str]) -> TaskData:
    clips = []
    for number, text in enumerate(captions):
        path = folder / f"{name}-{number}.npy"
        rng = np.random.default_rng([len(name), number])
        np.save(path, rng.integers(0, 256, (FRAMES, 56, 56, 3), dtype=np.uint8))
        clips.append(Clip(f"{name}-{number}", number, path, (text,), "train"))
    return TaskData(name, name, tuple(clips))


def test_it_starts_as_the_backbone(backbone: Backbone) -> None:
    method = start_method("strata", backbone, SMALL, None)
    method.begin_task("one", "one")
    frames = torch.randint(0, 256, (3, FRAMES, 56, 56, 3), dtype=torch.uint8)
    frozen = start_method("zero_shot", backbone, {}, None)
    torch.testing.assert_close(method.encode_videos(frames), frozen.encode_videos(frames))
    queries = frozen.query_encoder().encode_with_backbone(TEXTS)
    loss = in_task_loss(torch.from_numpy(queries), frozen.encode_videos(frames), method.config.logit_scale)
    torch.testing.assert_close(method.loss(frames, TEXTS, None), loss)


def test_every_update_of_both_towers_is_trained_and_no_weight_of_the_backbone(
    backbone: Backbone, tmp_path: Path
) -> None:
    before = {name: tensor.clone() for name, tensor in backbone.tensors().items()}
    method = start_method("strata", backbone, SMALL, None)
    first = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    learn_task(method, _task(tmp_path, "one", TEXTS))
    still = {name for name, t in method.state_dict().items() if name in first and torch.equal(t, first[name])}
    assert not still
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.tensors().items())


def test_what_was_learned_answers_the_same_for_ever(backbone: Backbone, tmp_path: Path) -> None:
    releases = {}
    answers: list[np.ndarray] = []
    method: Method | None = None
    vectors: np.ndarray | None = None
    for number, name in enumerate(("one", "other", "thirds")):
        method = start_method("strata", backbone, SMALL, method.release() if method else None)
        task = _task(tmp_path, name, [f"{text} {name}" for text in TEXTS])
        learn_task(method, task, StoredVectors())
        if vectors is None:
            vectors = embed_clips(method.encode_videos, task.clips)
        (tmp_path / str(number)).mkdir()
        write_release(tmp_path / str(number), method.release())
        releases[name] = read_query_release(tmp_path / str(number))
        encoder = open_query_encoder(backbone, releases[name], releases)
        answers.append(encoder.encode(TEXTS, ["one"], "pinned"))
        latest = encoder.encode(TEXTS, ["one"], "latest")
        assert np.array_equal(latest, answers[-1]) == (number == 0)
    assert np.array_equal(answers[0], answers[1])
    assert np.array_equal(answers[0], answers[2])
    scores = [answer[:, 0] @ vectors.T for answer in answers]
    assert np.array_equal(scores[0], scores[2])  # recall in a domain's own shard cannot change by a bit
    together = encoder.encode(TEXTS, list(releases), "pinned")
    np.testing.assert_allclose(together[:, 0], answers[0][:, 0], atol=1e-5)


def test_shards_that_predate_the_adapters_are_asked_with_the_backbone(
    backbone: Backbone, tmp_path: Path
) -> None:
    frozen = start_method("zero_shot", backbone, {}, None)
    learn_task(frozen, _task(tmp_path, "one", TEXTS))
    method = start_method("strata", backbone, SMALL, frozen.release())
    learn_task(method, _task(tmp_path, "other", TEXTS))
    releases = {"one": frozen.release(), "other": method.release()}
    encoder = open_query_encoder(backbone, releases["other"], releases)
    asked = encoder.encode(TEXTS, ["one", "other"], "pinned")
    np.testing.assert_allclose(asked[:, 0], encoder.encode_with_backbone(TEXTS), atol=1e-5)
    assert not np.allclose(asked[:, 1], asked[:, 0], atol=1e-4)
    np.testing.assert_allclose(encoder.encode(TEXTS, ["one"], "latest")[:, 0], asked[:, 1], atol=1e-5)


def test_the_words_of_a_release_are_those_of_its_task(backbone: Backbone, tmp_path: Path) -> None:
    method: Method | None = None
    rows = []
    for name, captions in (
        ("one", ["a red circle", "a red star"]),
        ("other", ["a blue circle", "two stars"]),
    ):
        method = start_method("strata", backbone, SMALL, method.release() if method else None)
        learn_task(method, _task(tmp_path, name, captions))
        tensors = method.release().tensors
        assert set(tensors["text.tokens"].tolist()) == set(backbone.tokenize(captions).unique().tolist()) - {
            0
        }
        rows.append(dict(zip(tensors["text.tokens"].tolist(), tensors["text.words"], strict=True)))
    shared = rows[0].keys() & rows[1].keys()
    assert shared
    assert not any(torch.equal(rows[0][token], rows[1][token]) for token in shared)


def test_without_a_rate_words_stay_as_they_are(backbone: Backbone, tmp_path: Path) -> None:
    method = start_method("strata", backbone, {**SMALL, "word_learning_rate": 0}, None)
    learn_task(method, _task(tmp_path, "one", TEXTS))
    assert not len(method.release().tensors["text.tokens"])


def test_shapes_of_a_library_cannot_be_changed_later(backbone: Backbone, tmp_path: Path) -> None:
    method = start_method("strata", backbone, SMALL, None)
    learn_task(method, _task(tmp_path, "one", TEXTS))
    with pytest.raises(MethodError, match="rank is 2; leave them out"):
        start_method("strata", backbone, {**SMALL, "rank": 3}, method.release())
    resumed = start_method("strata", backbone, {"epochs": 1}, method.release())
    assert resumed.fingerprint() == method.fingerprint()


@pytest.mark.parametrize("carry", [0.0, 0.5, 1.0])
def test_a_domain_begins_with_a_share_of_what_the_last_one_left(
    backbone: Backbone, tmp_path: Path, carry: float
) -> None:
    first = start_method("strata", backbone, SMALL, None)
    learn_task(first, _task(tmp_path, "one", TEXTS))
    left = first.release()
    second = start_method("strata", backbone, {**SMALL, "carry": carry}, left)
    indexed = start_method("strata", backbone, {**SMALL, "carry": carry}, left)
    second.begin_task("other", "other")
    indexed.begin_task("other", "other", trained=False)
    kept, begun = indexed.state_dict(), second.state_dict()
    assert all(torch.equal(kept[name], tensor) for name, tensor in left.tensors.items())
    for name, tensor in left.tensors.items():
        if name.endswith((".b", ".alpha")):
            torch.testing.assert_close(begun[name], carry * tensor)
        elif name.endswith(".a"):
            assert torch.equal(begun[name], tensor)
    if carry == 0:
        frames = torch.randint(0, 256, (2, FRAMES, 56, 56, 3), dtype=torch.uint8)
        frozen = start_method("zero_shot", backbone, {}, None)
        torch.testing.assert_close(second.encode_videos(frames), frozen.encode_videos(frames))
        assert not len(begun["text.tokens"])
    else:
        torch.testing.assert_close(begun["text.words"], carry * left.tensors["text.words"])
