"""Discovery of learning methods, and the contract of each.

A new method needs no change here: its settings are shrunk by their names, and all tests run over the registry.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import trainer.methods
from benchmarks.rivals import METHODS, configure, start_method
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import open_query_encoder, read_query_release, read_video_release
from models.encoders.video_encoder import VideoEncoder
from models.errors import ReleaseError
from models.releases.release_files import write_release
from models.releases.release_state import ReleaseState
from models.routing.routing_profiles import profile_row
from service.core.settings import METHOD_NAMES
from tests.trainer.methods.method_driver import (
    TEXTS,
    InterruptedTraining,
    create_method,
    equal_tensors,
    index_task,
    interrupt_at,
    learn_steps,
    random_backbone,
    random_frames,
    reserved_backbone,
    run_steps,
    write_task,
)
from trainer.methods import Method, MethodError
from trainer.release_calibration import calibrate_appended
from trainer.task_data import StoredVectors, TaskData
from trainer.training_checkpoint import CheckpointStore
from trainer.training_loop import learn_task
from trainer.video_embedding import embed_clips

NAMES = sorted(METHODS)
TRAINABLE = [name for name in NAMES if METHODS[name].is_trainable]
#: Methods with a training loop; a method in closed form has neither steps nor a loss nor randomness.
STEPPED = [name for name in TRAINABLE if not METHODS[name].is_closed_form]
#: Two epochs of two steps; the last epoch starts within a window of RWalk and an interval of ZSCL.
TRAINING = {"epochs": 2, "batch_size": 2}
#: Settings that change the state of a method; resuming is tested with and without them.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "ctp": [{"masked_language": False}],
    "ctp_er": [{"fill": "reservoir", "masked_language": False}],
    "der": [{"fill": "ring", "replay": 0.5}],
    "er": [{"fill": "herding"}],
    "rwalk": [{"window": 3}],
    "zscl": [{"ensemble_interval": 3}],
}
#: Methods whose expensive properties the fast tests cover; the slow tests cover all.
CORE = ("analytic", "bmu_moco", "ffa_tame", "finetune", "strata")
RESUMED = [
    pytest.param(name, settings, marks=() if name in CORE and not settings else pytest.mark.slow)
    for name in STEPPED
    for settings in ({}, *VARIANTS.get(name, ()))
]
CHANGED_SETTINGS = [(name, setting) for name in TRAINABLE for setting in METHODS[name].architecture_settings]


def _slow_except_core(names: Sequence[str]) -> list[Any]:
    return [pytest.param(name, marks=() if name in CORE else pytest.mark.slow) for name in names]


class LearnedLibrary(NamedTuple):
    """Result of two tasks in order.

    Attributes:
        tasks: Training data of both tasks.
        releases: Release after each task.
        folder: Folder with one release folder per task.
        method: Method after the second task.
        losses: Mean loss of each epoch, for each task.
    """

    tasks: list[TaskData]
    releases: list[ReleaseState]
    folder: Path
    method: Method
    losses: list[list[float]]


class _Shard:
    """Stored vectors of earlier tasks."""

    def vectors(self, ids: np.ndarray) -> np.ndarray:
        vectors = np.random.default_rng(7).normal(size=(6, 16)).astype(np.float32)
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True))[ids]


def stored_vectors(task: int) -> StoredVectors:
    """Return the stored vectors that a task's training sees."""
    return StoredVectors([(_Shard(), np.arange(6))] if task else [])


@cache
def contract_backbone() -> Backbone:
    return random_backbone()


@cache
def contract_folder() -> TemporaryDirectory[str]:
    """Return the folder of all libraries, which is removed at the end of the process."""
    return TemporaryDirectory(prefix="cinestrata-contract-")


@cache
def learned_library(name: str, settings: tuple[tuple[str, Any], ...] = ()) -> LearnedLibrary:
    """Learn two tasks with a method; tests share the result and must not change it."""
    folder = Path(mkdtemp(dir=contract_folder().name))
    tasks, releases, losses = [], [], []
    for number, task_name in enumerate(("one", "two")):
        captions = [[f"{text} {task_name}"] for text in TEXTS]
        task = write_task(folder, task_name, captions, ["val"])
        method = create_method(
            name, contract_backbone(), releases[-1] if releases else None, **TRAINING, **dict(settings)
        )
        losses.append(learn_task(method, task, stored_vectors(number)))
        tasks.append(task)
        releases.append(method.release())
        (folder / f"release-{task_name}").mkdir()
        write_release(folder / f"release-{task_name}", releases[-1])
    return LearnedLibrary(tasks, releases, folder, method, losses)


def continue_library(name: str, library: LearnedLibrary, **settings: Any) -> Any:
    """Return a method that continues the first release of a library."""
    return create_method(name, contract_backbone(), library.releases[0], **TRAINING, **settings)


# -- reproducibility ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "settings"), RESUMED)
def test_interrupted_task_resumes_to_the_same_bits(
    name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    library = learned_library(name, tuple(settings.items()))
    checkpoints = CheckpointStore(tmp_path, "run")
    with pytest.raises(InterruptedTraining):
        learn_task(
            continue_library(name, library, **settings),
            library.tasks[1],
            stored_vectors(1),
            checkpoints=checkpoints,
            report=interrupt_at(3),
        )
    torch.rand(3)  # the state of the global generator must not matter
    resumed = continue_library(name, library, **settings)
    steps: list[int] = []
    learn_task(
        resumed,
        library.tasks[1],
        stored_vectors(1),
        checkpoints=checkpoints,
        report=lambda progress: steps.append(progress.step),
    )
    assert steps == [3, 4]
    assert equal_tensors(resumed.release().tensors, library.releases[1].tensors)
    assert resumed.learned_tasks == library.releases[1].tasks


# -- training -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", _slow_except_core(STEPPED))
def test_training_lowers_the_loss_and_keeps_the_backbone(name: str, backbone: Backbone) -> None:
    torch.manual_seed(0)  # of random sentences and masked words
    weights_before = {key: tensor.clone() for key, tensor in backbone.tensors().items()}
    method = create_method(name, backbone, learning_rate=1e-3)
    method.begin_task("one", "one")
    with torch.no_grad():
        first_loss = float(method.loss(random_frames(1), TEXTS, None))
    run_steps(method, [1] * 10)
    torch.manual_seed(0)
    with torch.no_grad():
        assert float(method.loss(random_frames(1), TEXTS, None)) < first_loss
    assert equal_tensors(backbone.tensors(), weights_before)


@pytest.mark.parametrize("name", _slow_except_core(TRAINABLE))
def test_minimal_tasks_give_finite_unit_vectors(name: str, tmp_path: Path) -> None:
    tasks = [
        write_task(tmp_path, "one-video", [["a red circle moves left", "a circle", "it moves"]]),
        write_task(tmp_path, "one-caption", [["a blue square"]]),
        write_task(tmp_path, "identical", [["a ring"], ["a ring"], ["a ring"]], identical=True),
    ]
    releases: dict[str, ReleaseState] = {}
    release: ReleaseState | None = None
    for task in tasks:
        method = create_method(name, contract_backbone(), release, epochs=1, batch_size=4)
        losses = learn_task(method, task, StoredVectors())
        assert len(losses) == (name in STEPPED)
        assert np.isfinite(losses).all()
        vectors = embed_clips(method.encode_videos, task.clips)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
        releases[task.task_id] = release = method.release()
    assert release is not None
    encoder = open_query_encoder(contract_backbone(), release, releases)
    for mode in encoder.modes:
        vectors = encoder.encode(["a ring"], list(releases), mode)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in TRAINABLE or name in STEPPED])
def test_task_without_captions_changes_no_video_encoder(name: str, backbone: Backbone) -> None:
    library = learned_library(name)
    method = continue_library(name, library)
    fingerprint = method.fingerprint()
    index_task(method, "bare")
    assert [task.fingerprint for task in method.learned_tasks] == [fingerprint, fingerprint]
    encoder = method.query_encoder()
    vectors = encoder.encode(TEXTS, ["one", "bare"])
    np.testing.assert_allclose(vectors[:, 0], vectors[:, 1], atol=1e-6)


# -- releases and their encoders ------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_query_encoder_of_a_stored_release_equals_that_of_the_method(name: str) -> None:
    library = learned_library(name)
    releases = {task: read_query_release(library.folder / f"release-{task}") for task in ("one", "two")}
    stored = open_query_encoder(contract_backbone(), releases["two"], releases)
    current = library.method.query_encoder(dict(zip(("one", "two"), library.releases, strict=True)))
    for mode in stored.modes:
        vectors = stored.encode(TEXTS, ["two", "one"], mode)
        assert vectors.shape == (len(TEXTS), 2, library.method.encode_videos(random_frames(0)).shape[1])
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1, atol=1e-5)
        assert np.array_equal(vectors, current.encode(TEXTS, ["two", "one"], mode))


@pytest.mark.parametrize("name", NAMES)
def test_video_encoder_of_a_stored_release_equals_the_method(name: str) -> None:
    library = learned_library(name)
    releases = {task: read_video_release(library.folder / f"release-{task}") for task in ("one", "two")}
    fingerprints = {task.task_id: task.fingerprint for task in library.releases[1].tasks}
    encoder = VideoEncoder(contract_backbone(), fingerprints, releases)
    frames = random_frames(9)
    vectors = encoder.encode(frames, ["one", "two"])
    first = create_method(name, contract_backbone(), library.releases[0], **TRAINING)
    for position, method in enumerate((first, library.method)):
        np.testing.assert_allclose(vectors[:, position], method.encode_videos(frames).numpy(), atol=1e-6)
    single = frames.flatten(0, 1).unsqueeze(1)  # videos of one frame
    vectors = encoder.encode(single, ["two"])[:, 0]
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(vectors, library.method.encode_videos(single).numpy(), atol=1e-6)
    np.testing.assert_allclose(vectors[3:4], encoder.encode(single[3:4], ["two"])[:, 0], atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_pinned_queries_never_change(name: str) -> None:
    library = learned_library(name)
    releases = dict(zip(("one", "two"), library.releases, strict=True))
    earlier = open_query_encoder(contract_backbone(), releases["one"], releases)
    later = open_query_encoder(contract_backbone(), releases["two"], releases)
    if "pinned" not in later.modes:
        with pytest.raises(ReleaseError, match="mode 'pinned'"):
            later.encode(TEXTS, ["one"], "pinned")
        return
    before = earlier.encode(TEXTS, ["one"], "pinned")
    assert np.array_equal(later.encode(TEXTS, ["one"], "pinned"), before)
    together = later.encode(TEXTS, ["one", "two"], "pinned")
    np.testing.assert_allclose(together[:, :1], before, atol=1e-6)
    is_unchanged = np.allclose(later.encode(TEXTS, ["one"], "latest"), before, atol=1e-4)
    assert METHODS[name].is_trainable == (not is_unchanged)


@pytest.mark.parametrize("name", _slow_except_core(TRAINABLE))
def test_zero_shot_library_can_be_continued(name: str, backbone: Backbone) -> None:
    if name == "analytic":  # continues only vectors with its own number of coordinates
        backbone = reserved_backbone()
    zero_shot = create_method("zero_shot", backbone)
    index_task(zero_shot, "bare")
    method = create_method(name, backbone, zero_shot.release())
    learn_steps(method, "one", range(2))
    releases = {"bare": zero_shot.release(), "one": method.release()}
    encoder = open_query_encoder(backbone, releases["one"], releases)
    assert encoder.tasks == ["bare", "one"]
    mode = "pinned" if "pinned" in encoder.modes else "latest"
    bare, learned = encoder.encode(TEXTS, ["bare", "one"], mode).transpose(1, 0, 2)
    frozen = zero_shot.query_encoder().encode(TEXTS, ["bare"])[:, 0]
    if mode == "pinned":
        np.testing.assert_allclose(bare, frozen, atol=1e-6)
    assert not np.array_equal(learned, frozen)


# -- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_release_of_another_method_or_backbone_is_refused(name: str) -> None:
    if name in TRAINABLE:
        other = "ffa_tame" if name != "ffa_tame" else "finetune"
        with pytest.raises(
            MethodError, match=f"'{name}' cannot continue the release: it was made with method '{other}'"
        ):
            create_method(name, contract_backbone(), learned_library(other).releases[0])
    backbone, release = random_backbone(seed=9), learned_library(name).releases[0]
    with pytest.raises(MethodError, match="cannot continue the release: it was made on backbone"):
        create_method(name, backbone, release)
    with pytest.raises(ReleaseError, match="another backbone"):
        open_query_encoder(backbone, release, {"one": release})


@pytest.mark.parametrize("name", sorted(set(TRAINABLE) - set(STEPPED)))
def test_method_in_closed_form_learns_a_part_again(name: str) -> None:
    library = learned_library(name)
    assert library.method.refit([0], library.tasks[-1].train[0].captions) is not None


@pytest.mark.parametrize(("name", "setting"), CHANGED_SETTINGS)
def test_architecture_setting_is_inherited_and_a_changed_one_refused(name: str, setting: str) -> None:
    release = learned_library(name).releases[0]
    value = release.config[setting]
    assert getattr(start_method(name, contract_backbone(), {}, release).config, setting) == value
    choices = METHODS[name].config_class.model_fields[setting].annotation
    literals = getattr(choices, "__args__", ())
    if isinstance(value, bool):
        changed: Any = not value
    elif isinstance(value, str):
        changed = next(choice for choice in literals if choice != value)
    else:
        changed = value + 1 if isinstance(value, int) else value / 2
    with pytest.raises(MethodError, match=re.escape(f"it was made with {setting} {value!r}")):
        create_method(name, contract_backbone(), release, **{setting: changed})


# -- routing --------------------------------------------------------------------------------------------


def test_routing_profile_counts_the_words_of_the_training_captions(backbone: Backbone) -> None:
    method = create_method("zero_shot", backbone)
    learn_steps(method, "one", ())
    encoder = method.query_encoder()
    learned, other = (
        encoder.piece_presence(["a red circle", "zebra sleeping"]) @ method.profiles.to_dense()[0]
    )
    assert learned > 10
    assert other == 0


@pytest.mark.parametrize("name", NAMES)
def test_profile_that_is_computed_again_equals_that_of_the_release(name: str) -> None:
    """For the captions that the method has learned; appends and edits add theirs to them."""
    library = learned_library(name)
    captions = library.tasks[0].training_captions
    encoder = library.method.query_encoder(dict(zip(("one", "two"), library.releases, strict=True)))
    expected = library.releases[1].profiles.to_dense()[0]
    tokens, values = profile_row(captions, encoder.profile_factor)
    profile = np.zeros_like(expected)
    profile[tokens] = values
    np.testing.assert_array_equal(profile, expected)
    ids = np.empty(0, np.int64)
    counted, _ = calibrate_appended(encoder, "one", _Shard(), ids, captions, ())
    np.testing.assert_array_equal(counted, expected)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_is_one_module_with_a_recipe_of_its_name(name: str) -> None:
    method = METHODS[name]
    assert method.name == name
    assert method.__module__ == f"trainer.methods.{name}" or method.__module__.startswith(
        "benchmarks.rivals."
    )
    assert set(method.architecture_settings) <= set(method.config_class.model_fields)
    for backbone in ("tiny", "small", "open_clip:ViT-B-32/openai"):
        assert isinstance(configure(name, backbone, {}), method.config_class)
    fitted = {"semantic_penalty": 1000.0, "lexical_penalty": 2000.0} if name == "analytic" else {}
    assert configure(name, "lite2", fitted) == configure(name, "small", {})
    with pytest.raises(MethodError, match=f"settings of method '{name}': epoch: Extra inputs"):
        configure(name, "tiny", {"epoch": 3})


def test_service_offers_the_methods_of_the_trainer_alone() -> None:
    assert tuple(trainer.methods.METHODS) == METHOD_NAMES
    assert METHODS.items() > trainer.methods.METHODS.items()
    with pytest.raises(
        MethodError, match="unknown method 'ewc': choose one of analytic, bmu_moco, ccmr, ctp"
    ):
        trainer.methods.configure("ewc", "tiny", {})


def test_method_names_are_known_without_torch() -> None:
    code = "import sys; from service.core.settings import METHOD_NAMES; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_settings_override_the_recipe_of_the_backbone() -> None:
    assert configure("finetune", "other", {}).logit_scale == 100.0
    for backbone in ("tiny", "small", "lite2"):
        assert configure("finetune", backbone, {}).logit_scale == 20.0
    assert configure("finetune", "tiny", {"logit_scale": 7.0}).logit_scale == 7.0


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("er", {"fill": "all"}, "fill: "),
        ("vr_lwf", {"sentences": 0, "words": 63}, "sentences: .*words: |words: .*sentences: "),
        ("ctp", {"momentum": 1.0}, "momentum: "),
        ("ctp_er", {"queue": -1, "replay_batch": 0}, "queue: .*replay_batch: |replay_batch: .*queue: "),
        ("ffa_tame", {"epochs": 0, "rank": "x"}, "epochs: .*rank: "),
        ("mas", {"penalty": float("inf")}, "penalty: "),
        ("rwalk", {"decay": 1.0}, "decay: Extra inputs"),
    ],
)
def test_setting_out_of_range_is_refused_by_name(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(MethodError, match=message):
        configure(name, "tiny", settings)
