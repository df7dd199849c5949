"""PNN: a column per task, frozen earlier columns, and the column of each shard at search time."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.rivals.encoders.progressive_family import NO_COLUMN, encode_texts_with_columns
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import open_query_encoder, select_query_tensors
from tests.trainer.methods.method_driver import (
    TEXTS,
    create_method,
    index_task,
    learn_steps,
    random_frames,
)


def test_each_shard_keeps_the_column_of_its_task(backbone: Backbone) -> None:
    zero_shot = create_method("zero_shot", backbone)
    index_task(zero_shot, "frozen")
    releases = {"frozen": zero_shot.release()}
    vectors = {"frozen": zero_shot.encode_videos(random_frames(7))}
    for task in ("one", "bare", "two"):
        previous = list(releases.values())[-1]
        method = create_method("pnn", backbone, previous, learning_rate=1e-3)
        if task == "bare":
            index_task(method, task)
        else:
            learn_steps(method, task, range(2))
        releases[task] = method.release()
        vectors[task] = method.encode_videos(random_frames(7))
    assert method.task_columns == [NO_COLUMN, 0, 0, 1]
    assert torch.equal(vectors["one"], vectors["bare"])
    assert not torch.allclose(vectors["one"], vectors["two"], atol=1e-5)
    # The first column is bit for bit that of the first release.
    first, newest = releases["one"].tensors, releases["two"].tensors
    columns = [name for name in first if name != "pnn.tasks"]
    assert all(np.array_equal(first[name], newest[name]) for name in columns)
    served = {task: select_query_tensors(release) for task, release in releases.items()}
    encoder = open_query_encoder(backbone, served["two"], served)
    found = encoder.encode(TEXTS, encoder.tasks, "pinned")
    ids = backbone.tokenize(TEXTS)
    with torch.no_grad():
        expected = encode_texts_with_columns(method.text, ids, method.task_columns)
    np.testing.assert_allclose(found, expected.transpose(0, 1).numpy(), atol=1e-5)
    pairs = encoder.encode_pairs(encoder.tokenize(TEXTS), encoder.tasks, "pinned")
    np.testing.assert_allclose(pairs, found[range(4), range(4)], atol=1e-5)
    latest = encoder.encode(TEXTS, ["frozen", "two"], "latest")
    np.testing.assert_allclose(latest, found[:, [3, 3]], atol=1e-5)
    identities = [encoder.encoding_identity(task, "pinned") for task in encoder.tasks]
    assert identities[0] == backbone.fingerprint
    assert identities[1] == identities[2] != identities[3]
    earlier = open_query_encoder(backbone, served["one"], served)
    assert earlier.encoding_identity("one", "pinned") == identities[1]
    assert earlier.pinned_bytes * 2 < encoder.pinned_bytes, (
        "lateral connections come on top of a second tower"
    )
