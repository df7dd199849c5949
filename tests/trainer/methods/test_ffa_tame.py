"""FFA + TAME: equation 9, experts and prototypes of each task, and the parts that can be switched off."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch.nn import functional as F

from models.adapters.tame import NO_EXPERT, ROUTED
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import open_query_encoder
from tests.trainer.methods.method_driver import (
    TEXTS,
    create_method,
    index_task,
    learn_steps,
    random_frames,
    run_steps,
)
from trainer.methods import Method
from trainer.methods.base import cross_task_loss, in_task_loss


def current_queries(method: Method) -> torch.Tensor:
    """Return the query vectors ``[n, dim]`` of the texts for the task in progress."""
    method.record_task("current", "current", TEXTS)
    vectors = method.query_encoder().encode(TEXTS, ["current"])[:, 0]
    method.learned_tasks.pop()
    return torch.from_numpy(vectors)


def test_equation_9(backbone: Backbone) -> None:
    method = create_method("ffa_tame", backbone, cross_task=0.25)
    learn_steps(method, "one", [1, 1])
    method.begin_task("two", "two")
    references = F.normalize(torch.randn(5, backbone.dim), dim=-1)
    frames = random_frames(3)
    with torch.no_grad():
        videos = method.encode_videos(frames).clone()
        queries = current_queries(method)
        scale = method.config.logit_scale
        in_task = in_task_loss(queries, videos, scale)
        expected = 0.75 * in_task + 0.25 * cross_task_loss(queries, videos, references, scale)
        torch.testing.assert_close(method.loss(frames, TEXTS, references), expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(method.loss(frames, TEXTS, None), in_task, atol=1e-4, rtol=1e-4)


def test_second_task_copies_the_first_expert_and_a_bare_task_the_newest_prototype(backbone: Backbone) -> None:
    method = create_method("ffa_tame", backbone)
    learn_steps(method, "one", [1, 1])
    b = method.tame.b
    assert b[:, :, 0].abs().max() > 0
    assert b[:, :, 1:].abs().max() == 0
    method.begin_task("two", "two")
    assert method.tame.task_experts == [0, ROUTED]
    assert torch.equal(b[:, :, 1], b[:, :, 0])
    assert method.tame.router.requires_grad
    run_steps(method, [2])
    method.end_task()
    method.record_task("two", "two", TEXTS)
    index_task(method, "bare")
    assert method.tame.task_experts == [0, ROUTED, ROUTED]
    assert torch.equal(method.tame.prototypes[2], method.tame.prototypes[1])


def test_without_tame_or_ffa_the_frozen_tower_encodes(backbone: Backbone) -> None:
    method = create_method("ffa_tame", backbone, tame=False)
    for seed, task in enumerate(["one", "two"]):
        learn_steps(method, task, [seed])
    encoder = method.query_encoder()
    queries = encoder.encode(TEXTS, ["two"])[:, 0]
    np.testing.assert_allclose(queries, encoder.encode_with_backbone(TEXTS), atol=1e-6)
    assert any(gate.abs() > 0 for gate in method.fusion.gates())
    method = create_method("ffa_tame", backbone, ffa_layers=0)
    learn_steps(method, "one", [1])
    frames, zero_shot = random_frames(1), create_method("zero_shot", backbone)
    torch.testing.assert_close(method.encode_videos(frames), zero_shot.encode_videos(frames))


def test_shards_of_a_zero_shot_library_keep_the_plain_text_tower(backbone: Backbone) -> None:
    zero_shot = create_method("zero_shot", backbone)
    index_task(zero_shot, "bare")
    first = zero_shot.release()
    method = create_method("ffa_tame", backbone, first)
    learn_steps(method, "one", [1, 1])
    second = method.release()
    assert method.tame.task_experts == [NO_EXPERT, 0]
    encoder = open_query_encoder(backbone, second, {"bare": first, "one": second})
    for mode in encoder.modes:
        queries = encoder.encode(TEXTS, ["bare"], mode)[:, 0]
        np.testing.assert_allclose(queries, encoder.encode_with_backbone(TEXTS), atol=1e-6)


def test_word_rows_change_the_embedding_table(backbone: Backbone) -> None:
    method = create_method("ffa_tame", backbone, word_learning_rate=1e-2)
    learn_steps(method, "one", [1, 1])
    assert method.words is not None
    changes = method.words.words.detach()
    tokens = backbone.tokenize(TEXTS).unique()
    assert changes[tokens].any()
    others = torch.ones(len(changes), dtype=torch.bool)
    others[tokens] = False
    assert not changes[others].any()
    release = method.release()
    # Reference: the same adapters on a tower whose table contains the changes.
    changed = backbone.clone()
    with torch.no_grad():
        changed.token_embedding.weight += changes
    rest = {name: tensor for name, tensor in release.tensors.items() if not name.startswith("words.")}
    plain = dataclasses.replace(release, tensors=rest)
    reference = open_query_encoder(changed, plain, {"one": plain})
    encoder = open_query_encoder(backbone, release, {"one": release})
    without = open_query_encoder(backbone, plain, {"one": plain})
    for mode in encoder.modes:
        queries = encoder.encode(TEXTS, ["one"], mode)
        np.testing.assert_allclose(queries, reference.encode(TEXTS, ["one"], mode), atol=1e-5)
        assert np.abs(queries - without.encode(TEXTS, ["one"], mode)).max() > 1e-4


def test_pinned_word_rows_are_those_of_the_release_of_each_shard(backbone: Backbone) -> None:
    zero_shot = create_method("zero_shot", backbone)
    index_task(zero_shot, "bare")
    pinned = {"bare": zero_shot.release()}
    method = create_method("ffa_tame", backbone, pinned["bare"], word_learning_rate=1e-2)
    learn_steps(method, "one", [1, 1])
    pinned["one"] = method.release()
    first = open_query_encoder(backbone, pinned["one"], pinned)
    method = create_method("ffa_tame", backbone, pinned["one"], word_learning_rate=1e-2)
    learn_steps(method, "two", [2, 2])
    pinned["two"] = method.release()
    encoder = open_query_encoder(backbone, pinned["two"], pinned)
    reused = open_query_encoder(
        backbone, pinned["two"], {"two": pinned["two"]}, previous=first, unchanged_tasks=("bare", "one")
    )
    for mode in encoder.modes:
        queries = encoder.encode(TEXTS, ["bare", "one", "two"], mode)
        np.testing.assert_allclose(queries[:, 0], encoder.encode_with_backbone(TEXTS), atol=1e-6)
        texts = [text for text in encoder.tokenize(TEXTS) for _ in pinned]
        pairs = encoder.encode_pairs(texts, [*pinned] * len(TEXTS), mode)
        np.testing.assert_allclose(pairs, queries.reshape(pairs.shape), atol=1e-5)
        earlier = first.encode(TEXTS, ["one"], mode)[:, 0]
        drift = np.abs(queries[:, 1] - earlier).max()
        assert drift < 1e-6 if mode == "pinned" else drift > 1e-4
    again = reused.encode(TEXTS, ["bare", "one", "two"], "pinned")
    np.testing.assert_allclose(again, encoder.encode(TEXTS, ["bare", "one", "two"], "pinned"), atol=1e-6)
