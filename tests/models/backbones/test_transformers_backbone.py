"""ViT and BERT backbones against loops over the models of transformers, which also writes the test folders."""

from __future__ import annotations

import json
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from transformers import BertConfig, BertModel, DeiTConfig, DeiTModel, PreTrainedModel, ViTConfig, ViTModel

from benchmarks.rivals import METHODS, start_method
from models.backbones import has_open_blocks
from models.backbones.backbone import Backbone
from models.backbones.backbone_description import FrameSpec
from models.backbones.backbone_loading import frame_spec, load_backbone
from models.encoders.encoder_registry import open_query_encoder, read_query_release
from models.encoders.tower_forward import encode_frames, encode_texts
from models.errors import BackboneUnavailable, BackboneUnsupported
from models.releases.release_files import write_release
from service.core.settings import METHOD_NAMES
from service.tasks.ingestion_checks import find_method_error
from tests.random_frames import random_frames
from trainer.methods import Method
from trainer.task_data import Clip, Pair

torch.set_num_threads(1)

SMALL = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 64}
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["a", "red", "blue", "circle", "square", "moves", "left", "spin", "##s", "zebra", "last"]
TEXTS = ["a red circle moves left", "spins", "", "a blue square " * 60]
FRAMES, DIM = 2, 256


def _add_projection(folder: Path, name: str, projection: Tensor) -> None:
    path = folder / "model.safetensors"
    save_file({**load_file(path), f"{name}_projection.weight": projection}, path, metadata={"format": "pt"})


def _save_text(folder: Path, vocabulary: int | None = None, positions: int = 80) -> None:
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=vocabulary or len(SPECIALS + WORDS), max_position_embeddings=positions, **SMALL
    )
    BertModel(config).save_pretrained(folder)
    _add_projection(folder, "text", torch.randn(DIM, 32))
    (folder / "vocab.txt").write_text("\n".join(SPECIALS + WORDS))


@pytest.fixture(scope="module")
def towers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders ``vit``, ``deit`` and ``bert`` of random models."""
    folder = tmp_path_factory.mktemp("towers")
    torch.manual_seed(0)
    image = {"image_size": 32, "patch_size": 16, **SMALL}
    ViTModel(ViTConfig(**image)).save_pretrained(folder / "vit")
    DeiTModel(DeiTConfig(**image)).save_pretrained(folder / "deit")
    for vision in ("vit", "deit"):
        _add_projection(folder / vision, "visual", torch.randn(DIM, 32))
    _save_text(folder / "bert")
    return folder


def _name(towers: Path, vision: str = "vit", text: str = "bert") -> str:
    return f"transformers:{towers / vision}+{towers / text}"


@pytest.fixture(scope="module")
def backbone(towers: Path) -> Backbone:
    return load_backbone(_name(towers), frames=FRAMES)


@pytest.fixture
def copied(towers: Path, tmp_path: Path) -> Path:
    """Copies of the folders that a test may change."""
    shutil.copytree(towers, tmp_path / "towers")
    return tmp_path / "towers"


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse network access in all tests."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def _frames(seed: int, videos: int = 3, frames: int = FRAMES) -> Tensor:
    return random_frames(seed, videos, frames, size=32)


# -- equations 1 to 6 of bmu-moco -----------------------------------------------------------------------


@pytest.mark.parametrize(("vision", "model"), [("vit", ViTModel), ("deit", DeiTModel)])
def test_video_vectors_follow_equations_1_to_3(
    towers: Path, vision: str, model: type[PreTrainedModel]
) -> None:
    backbone = load_backbone(_name(towers, vision), frames=3)
    original = model.from_pretrained(towers / vision)
    frames = _frames(0, frames=3)
    videos, per_frame = encode_frames(backbone, frames)
    projection = backbone.tensors()["clip.visual.proj"]
    with torch.no_grad():
        for i in range(3):
            projected = []
            for j in range(3):
                pixels = (frames[i, j].permute(2, 0, 1).float() / 255 - 0.5) / 0.5
                state = original(pixel_values=pixels[None]).last_hidden_state[0, 0]
                projected.append(state @ projection)
                torch.testing.assert_close(
                    per_frame[i, j], F.normalize(projected[-1], dim=0), atol=1e-5, rtol=0
                )
            mean = torch.stack(projected).mean(dim=0)
            torch.testing.assert_close(videos[i], F.normalize(mean, dim=0), atol=1e-5, rtol=0)
    features = backbone.video_features(frames)
    assert features.shape == (3, backbone.feature_dim)
    torch.testing.assert_close(F.normalize(features @ projection, dim=-1), videos, atol=1e-5, rtol=0)


def test_text_vectors_follow_equations_4_to_6(towers: Path, backbone: Backbone) -> None:
    original = BertModel.from_pretrained(towers / "bert").eval()
    ids = backbone.tokenize(TEXTS)
    end = backbone.end_of_text(ids)
    vectors = encode_texts(backbone.clone(), ids)  # a copy has no engine, which rounds weights
    assert vectors.shape == (1, 4, backbone.dim)
    projection = backbone.tensors()["clip.text.text_projection"]
    with torch.no_grad():
        for row, last, vector in zip(ids, end, vectors[0], strict=True):
            states = original(input_ids=row[None, : int(last) + 1]).last_hidden_state[0]
            mean = sum(state @ projection for state in states) / len(states)
            torch.testing.assert_close(vector, F.normalize(mean, dim=0), atol=1e-5, rtol=0)


def test_tokenizer_adds_special_tokens_and_truncates_like_bert(backbone: Backbone) -> None:
    ids = backbone.tokenize(TEXTS)
    vocabulary = SPECIALS + WORDS
    assert ids.shape == (4, 77)
    assert " ".join(vocabulary[i] for i in ids[0, :8]) == "[CLS] a red circle moves left [SEP] [PAD]"
    assert [vocabulary[i] for i in ids[1, :5]] == ["[CLS]", "spin", "##s", "[SEP]", "[PAD]"]
    assert backbone.end_of_text(ids).tolist() == [6, 3, 1, 76]
    assert backbone.tokenize(["a", "a red"]).shape == (2, 4)
    assert backbone.vocabulary == len(vocabulary)


def test_texts_are_truncated_to_the_tower_limit(copied: Path) -> None:
    _save_text(copied / "bert", positions=20)
    backbone = load_backbone(_name(copied))
    assert backbone.tokenize(TEXTS).shape == (4, 20)
    assert encode_texts(backbone, backbone.tokenize(TEXTS)).isfinite().all()


def test_padding_changes_no_vector(backbone: Backbone) -> None:
    vectors = [encode_texts(backbone, backbone.tokenize(texts))[0, 0] for texts in (TEXTS[:1], TEXTS)]
    torch.testing.assert_close(*vectors, atol=1e-6, rtol=0)


def test_tokenizer_is_thread_safe(backbone: Backbone) -> None:
    expected = [backbone.tokenize(["a red circle"] * (n % 5 + 1) + ["a"]) for n in range(100)]
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda n: backbone.tokenize(["a red circle"] * (n % 5 + 1) + ["a"]), range(100)))
    assert all(torch.equal(a, b) for a, b in zip(ids, expected, strict=True))


# -- fingerprint -------------------------------------------------------------------------------------------


def test_frame_spec_needs_no_weights(copied: Path) -> None:
    (copied / "vit" / "model.safetensors").unlink()
    assert frame_spec(_name(copied)) == FrameSpec(8, 32)
    assert frame_spec(_name(copied), frames=5) == FrameSpec(5, 32)
    with pytest.raises(BackboneUnavailable, match=r"config\.json and model\.safetensors"):
        load_backbone(_name(copied))


def test_fingerprint_depends_on_contents_not_on_paths(towers: Path, copied: Path) -> None:
    first = load_backbone(_name(towers))
    assert first.fingerprint == load_backbone(_name(copied)).fingerprint
    assert not any(p.requires_grad for p in first.parameters())
    assert not any(module.training for module in first.modules())
    assert first.dim == DIM

    (copied / "vit" / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.2, 0.2]})
    )
    other_normalization = load_backbone(_name(copied))
    torch.testing.assert_close(other_normalization.mean.flatten(), torch.tensor([102.0, 127.5, 153.0]))
    (copied / "bert" / "vocab.txt").write_text("\n".join(SPECIALS + WORDS[::-1]))
    other_words = load_backbone(_name(copied))
    settings = json.loads((copied / "bert" / "config.json").read_text())
    (copied / "bert" / "config.json").write_text(json.dumps({**settings, "num_attention_heads": 2}))
    other_heads = load_backbone(_name(copied))
    backbones = [first, other_normalization, other_words, other_heads]
    assert len({backbone.fingerprint for backbone in backbones}) == 4


def test_projections_of_checkpoints_are_used(copied: Path, backbone: Backbone) -> None:
    for folder, name, tensor in (
        ("vit", "visual", backbone.tensors()["clip.visual.proj"]),
        ("bert", "text", backbone.tensors()["clip.text.text_projection"]),
    ):
        stored = load_file(copied / folder / "model.safetensors")[f"{name}_projection.weight"]
        torch.testing.assert_close(tensor, stored.T)
    _add_projection(copied / "vit", "visual", torch.randn(16, 32))
    with pytest.raises(BackboneUnavailable, match=r"visual_projection.weight has shape \[16, 32\]"):
        load_backbone(_name(copied))
    BertModel.from_pretrained(copied / "bert").save_pretrained(copied / "bert")
    with pytest.raises(BackboneUnavailable, match=r"text_projection.weight None; the shapes must be"):
        load_backbone(_name(copied))


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["transformers:vit", "transformers:a+", "transformers:+b", "transformers:a+b+c"]
)
def test_name_without_two_towers_is_refused(name: str) -> None:
    form = r"transformers:<vision model or folder>\+<text model or folder>"
    with pytest.raises(BackboneUnavailable, match=form):
        frame_spec(name)


def test_missing_folder_error_names_the_expected_files(towers: Path) -> None:
    for name in (_name(towers, "nowhere"), _name(towers, text="nowhere"), "transformers:some/vit+some/bert"):
        hint = r"give two folders .*transformers:<path to the vision folder>"
        with pytest.raises(BackboneUnavailable, match=hint):
            load_backbone(name)


def test_unsupported_architectures_are_refused_by_name(towers: Path) -> None:
    with pytest.raises(BackboneUnsupported, match=r"is of type 'bert'; this tower must be vit or deit"):
        load_backbone(f"transformers:{towers / 'bert'}+{towers / 'vit'}")
    with pytest.raises(BackboneUnsupported, match=r"is of type 'vit'; this tower must be bert"):
        load_backbone(f"transformers:{towers / 'vit'}+{towers / 'vit'}")


def test_pickled_weights_are_not_read(copied: Path) -> None:
    tensors = load_file(copied / "bert" / "model.safetensors")
    (copied / "bert" / "model.safetensors").unlink()
    torch.save(tensors, copied / "bert" / "pytorch_model.bin")
    with pytest.raises(BackboneUnavailable, match="could not be loaded"):
        load_backbone(_name(copied))


@pytest.mark.parametrize("folder", ["vit", "bert"])
def test_code_of_a_checkpoint_is_not_executed(copied: Path, folder: str) -> None:
    (copied / folder / "evil.py").write_text(f"open({str(copied / 'ran')!r}, 'w')\nclass Evil: pass\n")
    for file in ("config.json", "tokenizer_config.json"):
        path = copied / folder / file
        settings = json.loads(path.read_text()) if path.exists() else {}
        names = {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil", "AutoTokenizer": ["evil.Evil"] * 2}
        path.write_text(json.dumps({**settings, "auto_map": names}))
    assert load_backbone(_name(copied)).dim == DIM
    assert not (copied / "ran").exists()


def test_weights_that_do_not_fit_their_config_are_refused(copied: Path) -> None:
    path = copied / "bert" / "config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "num_hidden_layers": 3}))
    missing = r"do not fit its config.json: 16 are missing, .*encoder.layer.2"
    with pytest.raises(BackboneUnavailable, match=missing):
        load_backbone(_name(copied))
    path.write_text(json.dumps({**settings, "vocab_size": 99}))
    with pytest.raises(BackboneUnavailable, match="could not be loaded"):
        load_backbone(_name(copied))
    _save_text(copied / "bert", vocabulary=10)
    with pytest.raises(BackboneUnavailable, match=r"has 16 tokens, but the weights are for 10"):
        load_backbone(_name(copied))


# -- methods --------------------------------------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "bmu_moco": {"queue": 8},
    "ctp": {"masked_language": False, "queue": 8},
}


def _learn(method: Method, task: str, texts: list[str], folder: Path) -> None:
    clips = [
        Clip(f"{task}-{n}", n, folder / f"{task}-{n}.npy", (text,), "train") for n, text in enumerate(texts)
    ]
    for clip, frames in zip(clips, _frames(1, len(texts)), strict=True):
        np.save(clip.frames_path, frames.numpy())
    method.begin_task(task, task)
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(method.parameter_groups())
    for _ in range(2):
        optimizer.zero_grad()
        method.loss(_frames(1, len(texts)), texts, None).backward()
        optimizer.step()
        method.after_step()
    method.end_task([Pair(clip, clip.captions[0]) for clip in clips])
    method.record_task(task, task, texts)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zero_shot", "finetune", "bmu_moco", "ctp", "ccmr", "rwalk", "er"])
def test_methods_on_whole_towers_run_on_the_backbone(name: str, backbone: Backbone, tmp_path: Path) -> None:
    method = start_method(name, backbone, SETTINGS.get(name, {}), None)
    untrained, before = method.fingerprint(), backbone.fingerprint
    if METHODS[name].is_trainable:
        for task in ("one", "two"):
            _learn(method, task, ["a red circle", "a blue square moves"], tmp_path)
        assert method.fingerprint() != untrained
    else:
        for task in ("one", "two"):
            method.record_task(task, task, ["a red circle"])
    assert backbone.compute_fingerprint() == before
    (tmp_path / "release").mkdir()
    write_release(tmp_path / "release", method.release())
    release = read_query_release(tmp_path / "release")
    encoder = open_query_encoder(backbone, release, dict.fromkeys(("one", "two"), release))
    vectors = encoder.encode(TEXTS, ["one", "two"])
    np.testing.assert_allclose(vectors, method.query_encoder().encode(TEXTS, ["one", "two"]), atol=1e-6)
    assert np.abs(encoder.piece_presence(["a red circle"])[0] @ method.profiles.to_dense()[0]) > 1
    torch.testing.assert_close(method.encode_videos(_frames(7)).norm(dim=-1), torch.ones(3))


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_service_refuses_exactly_the_methods_that_cannot_run(name: str, backbone: Backbone) -> None:
    is_refused = find_method_error(name, {}, backbone.name) is not None
    with pytest.raises(BackboneUnsupported) if is_refused else nullcontext():
        start_method(name, backbone, {}, None)
    assert has_open_blocks(backbone.name) == backbone.has_open_blocks


def test_masked_language_loss_of_ctp_needs_open_blocks(backbone: Backbone) -> None:
    with pytest.raises(BackboneUnsupported, match="method 'ctp': backbone 'transformers:"):
        start_method("ctp", backbone, {"masked_language": True}, None)
