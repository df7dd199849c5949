"""Frozen encoders of open_clip and transformers: their contract on cut models, files, and refusals."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from weakref import ref

import huggingface_hub
import numpy as np
import open_clip
import pytest
import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    AltCLIPConfig,
    AltCLIPModel,
    BertConfig,
    ChineseCLIPConfig,
    ChineseCLIPModel,
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    RobertaConfig,
    SiglipConfig,
    SiglipImageProcessor,
    SiglipModel,
)

from benchmarks.rivals import start_method
from media.pyav_decoding import fit_picture
from models.backbones import has_open_blocks
from models.backbones.backbone_loading import frame_spec, load_backbone
from models.backbones.frozen_encoder import FrozenEncoder
from models.encoders.encoder_registry import (
    load_query_backbone,
    open_query_encoder,
    read_query_release,
    read_video_release,
)
from models.encoders.tower_query_backbone import TowerQueryBackbone
from models.encoders.video_encoder import VideoEncoder
from models.errors import BackboneUnavailable, BackboneUnsupported, ReleaseError
from models.releases.release_files import write_release
from service.core.settings import METHOD_NAMES
from service.tasks.ingestion_checks import find_method_error
from tests.models.backbones.encoder_contract import (
    TEXTS,
    WORDS,
    check_contract,
    write_open_clip,
    write_tokenizer,
)
from tests.random_frames import random_frames

VIT = {"image_size": 32, "layers": 2, "width": 64, "patch_size": 16}
TEXT = {"context_length": 16, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2}
HUB_TEXT = {**TEXT, "hf_tokenizer_name": "hub/tokenizer", "tokenizer_kwargs": {"clean": "canonicalize"}}
SIGLIP_TEXT = {**HUB_TEXT, "no_causal_mask": True, "proj_bias": True, "pool_type": "last"}
TIMM = {"timm_model_name": "test_vit", "timm_pool": "", "timm_proj": "linear", "image_size": 160}
OPENAI = {
    "mean": [0.48, 0.46, 0.41],
    "std": [0.27, 0.26, 0.28],
    "interpolation": "bicubic",
    "resize_mode": "shortest",
}
SQUASHED = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bilinear", "resize_mode": "squash"}
ROBERTA = {"vocab_size": len(WORDS), "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
ROBERTA |= {"intermediate_size": 64, "pad_token_id": 0, "max_position_embeddings": 80}
HF_TEXT = {"hf_model_name": "hub/roberta", "hf_tokenizer_name": "hub/roberta", "hf_proj_type": "mlp"}
COCA_TEXT = {**TEXT, "embed_cls": True, "output_tokens": True}
COCA_IMAGES = {**VIT, "attentional_pool": True, "output_tokens": True, "attn_pooler_heads": 2}
COCA = {"multimodal_cfg": {**TEXT, "attn_pooler_heads": 2}, "custom_text": True}

CUT: dict[str, dict[str, Any]] = {
    "vit": {"vision_cfg": {**VIT, "pool_type": "avg"}, "text_cfg": TEXT},
    "timm": {"vision_cfg": TIMM, "text_cfg": TEXT, "custom_text": True},
    "siglip": {"vision_cfg": TIMM, "text_cfg": SIGLIP_TEXT, "custom_text": True, "init_logit_bias": -10},
    "hf-text": {"vision_cfg": VIT, "text_cfg": HF_TEXT},
    "coca": {"vision_cfg": COCA_IMAGES, "text_cfg": COCA_TEXT, **COCA},
    "resnet": {"vision_cfg": {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8}, "text_cfg": TEXT},
}
HIDDEN = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
IMAGES = {**HIDDEN, "image_size": 32, "patch_size": 16}
CLIP_TEXT = {**HIDDEN, "vocab_size": len(WORDS), "max_position_embeddings": 16}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def write_cut(kind: str, folder: Path) -> str:
    preprocessing = SQUASHED if kind in ("siglip", "timm") else OPENAI
    tower = RobertaConfig(**ROBERTA) if kind == "hf-text" else None
    return write_open_clip(folder, {"embed_dim": 24, **CUT[kind]}, preprocessing, tower)


def write_transformers(kind: str, folder: Path) -> str:
    torch.manual_seed(0)
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    model: Any
    if kind == "siglip":
        model = SiglipModel(SiglipConfig(text_config={**CLIP_TEXT, **ids}, vision_config=IMAGES))
    elif kind == "clip":
        model = CLIPModel(
            CLIPConfig(text_config={**CLIP_TEXT, **ids}, vision_config=IMAGES, projection_dim=24)
        )
    elif kind == "altclip":
        text = {**ROBERTA, "project_dim": 24, "max_position_embeddings": 80}
        model = AltCLIPModel(AltCLIPConfig(text_config=text, vision_config=IMAGES, projection_dim=24))
    else:
        text = {**CLIP_TEXT, "pad_token_id": 0}
        model = ChineseCLIPModel(ChineseCLIPConfig(text_config=text, vision_config=IMAGES, projection_dim=24))
    model.save_pretrained(folder)
    write_tokenizer(folder)
    square = {"height": 32, "width": 32}
    if kind == "siglip":
        SiglipImageProcessor(size=square).save_pretrained(folder)
    else:
        CLIPImageProcessor(size={"shortest_edge": 40}, crop_size=square).save_pretrained(folder)
    return f"transformers:{folder}"


@pytest.mark.parametrize("kind", CUT)
def test_open_clip_models_keep_the_contract(kind: str, tmp_path: Path) -> None:
    name = write_cut(kind, tmp_path)
    assert not has_open_blocks(name)
    check_contract(name, tmp_path)


@pytest.mark.parametrize("kind", ["siglip", "clip", "altclip", "chinese_clip"])
def test_transformers_models_keep_the_contract(kind: str, tmp_path: Path) -> None:
    name = write_transformers(kind, tmp_path)
    assert not has_open_blocks(name)
    check_contract(name, tmp_path)


@pytest.mark.parametrize("kind", ["vit", "timm", "eos"])
def test_texts_have_the_vectors_of_open_clip(kind: str, tmp_path: Path) -> None:
    if kind == "eos":
        texts = {**HUB_TEXT, "pool_type": "eos", "eos_id": 2}
        name = write_open_clip(tmp_path, {"embed_dim": 24, "vision_cfg": VIT, "text_cfg": texts}, OPENAI)
        padded = open_clip.get_tokenizer(f"local-dir:{tmp_path}")(TEXTS)
    else:
        name = write_cut(kind, tmp_path)
        padded = open_clip.get_tokenizer("ViT-B-32", context_length=16)(TEXTS)
    model = open_clip.create_model(f"local-dir:{tmp_path}")
    backbone = load_query_backbone(name)
    with torch.no_grad():
        expected = model.eval().encode_text(padded, normalize=True)
    np.testing.assert_allclose(backbone.encode(backbone.tokenize(TEXTS)), expected, atol=1e-5)


def test_preprocessing_equals_the_libraries(tmp_path: Path) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8))
    picture = noise.resize((120, 90), Image.Resampling.BICUBIC)
    for kind in ("siglip", "vit"):
        backbone = load_backbone(write_cut(kind, tmp_path / kind), 1)
        stated = json.loads((tmp_path / kind / "open_clip_config.json").read_text())["preprocess_cfg"]
        expected = image_transform_v2(PreprocessCfg(size=backbone.spec.shape, **stated), is_train=False)(
            picture
        )
        frame = torch.tensor(fit_picture(picture, backbone.spec.size))
        pixels = backbone.pixels(frame[None, None])[0]
        torch.testing.assert_close(pixels, expected, atol=1e-5, rtol=0)
        strip = fit_picture(Image.new("RGB", (4000, 2)), backbone.spec.size)
        assert strip.shape == (*backbone.spec.shape, 3)


def test_pictures_are_padded_where_the_model_was_trained_so(tmp_path: Path) -> None:
    config = {"embed_dim": 24, **CUT["vit"]}
    name = write_open_clip(tmp_path, config, {**OPENAI, "resize_mode": "longest"})
    assert frame_spec(name, 3) == (3, (32, 32, "pad", "bicubic"))
    frame = fit_picture(Image.new("RGB", (64, 32), "white"), frame_spec(name).size)
    assert frame.shape == (32, 32, 3)
    assert frame[:, 16, 0].tolist() == [0] * 8 + [255] * 16 + [0] * 8
    (tmp_path / "tilted").mkdir()
    tilted = write_open_clip(tmp_path / "tilted", config, {**OPENAI, "resize_mode": "tilted"})
    with pytest.raises(BackboneUnsupported, match="'resize_mode': 'tilted'"):
        frame_spec(tilted)


def test_preprocessing_of_a_file_is_that_of_the_models_tags(tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").touch()
    name = f"open_clip:ViT-B-16-SigLIP2-384/{tmp_path / 'weights.safetensors'}"
    assert frame_spec(name) == (12, (384, 384, "squash", "bicubic"))


def test_plain_clips_see_cropped_frames_whatever_their_tag_states() -> None:
    """Their fingerprints contain the frame size, so it stays that of earlier versions."""
    assert frame_spec("open_clip:ViT-H-14-378/dfn5b") == (12, 378)


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("model_cfg", "vision_cfg", []),
        ("preprocess_cfg", "resize_mode", []),
        ("preprocess_cfg", "fill_color", 7),
        ("vision_cfg", "image_size", [32]),
        ("vision_cfg", "image_size", [10**9, 10**9]),
        ("vision_cfg", "image_size", "32"),
        ("", "preprocess_cfg", ["squash"]),
        ("", "model_cfg", None),
    ],
)
def test_damaged_configurations_are_refused(part: str, key: str, value: Any, tmp_path: Path) -> None:
    name, file = write_cut("vit", tmp_path), tmp_path / "open_clip_config.json"
    settings = json.loads(file.read_text())
    parts = {"": settings, **settings, **settings["model_cfg"]}
    parts[part][key] = value
    file.write_text(json.dumps(settings))
    with pytest.raises((BackboneUnavailable, BackboneUnsupported), match="backbone 'open_clip:cut/"):
        frame_spec(name)


def test_processors_that_crop_more_than_a_frame_are_refused(tmp_path: Path) -> None:
    name, file = write_transformers("clip", tmp_path), tmp_path / "preprocessor_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "crop_size": {"height": 32, "width": 48}}))
    with pytest.raises(BackboneUnsupported, match=r"cuts \(32, 48\) pixels out of \(40, 40\)"):
        frame_spec(name)


def test_both_towers_replace_the_text_tower_alone(tmp_path: Path) -> None:
    texts = load_query_backbone(write_cut("siglip", tmp_path))
    assert isinstance(texts, TowerQueryBackbone)
    vectors, alone, weight_bytes = texts.encode(texts.tokenize(TEXTS)), ref(texts.packed), texts.weight_bytes
    assert texts.towers() is texts.packed
    assert alone() is None, "the memory of the text tower is freed"
    assert texts.weight_bytes > weight_bytes
    np.testing.assert_allclose(texts.encode(texts.tokenize(TEXTS), alone=True), vectors, atol=1e-5)


def test_fingerprint_depends_on_contents_not_on_paths(tmp_path: Path) -> None:
    name = write_cut("hf-text", tmp_path / "first")
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    config = tmp_path / "second" / "open_clip_config.json"
    copied = name.replace("first", "second")

    def changed(change: Callable[[dict[str, Any]], Any]) -> str:
        settings = json.loads(config.read_text())
        change(settings)
        config.write_text(json.dumps(settings))
        return load_backbone(copied).fingerprint

    first = load_backbone(name).fingerprint
    assert first == load_query_backbone(copied).fingerprint == changed(lambda _: None)
    assert not any(p.requires_grad for p in load_backbone(name).parameters())
    mean = changed(lambda settings: settings["preprocess_cfg"].update(mean=[0.4, 0.5, 0.6]))
    length = changed(lambda settings: settings["model_cfg"]["text_cfg"].update(context_length=12))
    weights = load_file(tmp_path / "second" / "model.safetensors")
    save_file({key: tensor * 2 for key, tensor in weights.items()}, tmp_path / "second" / "model.safetensors")
    assert len({first, mean, length, load_backbone(copied).fingerprint}) == 4


def test_wrong_weights_name_the_first_tensor(tmp_path: Path) -> None:
    name = write_cut("vit", tmp_path / "vit")
    file = tmp_path / "vit" / "model.safetensors"
    weights = load_file(file)
    save_file({**weights, "visual.proj": torch.zeros(2, 3)}, file)
    with pytest.raises(BackboneUnavailable, match=r"of another model: .*visual.proj.*\[2, 3\].*\[64, 24\]"):
        load_backbone(name)
    name, file = write_transformers("siglip", tmp_path / "siglip"), tmp_path / "siglip" / "model.safetensors"
    weights = load_file(file)
    save_file({**weights, "logit_scale": torch.zeros(4)}, file, {"format": "pt"})
    with pytest.raises(BackboneUnavailable, match=r"logit_scale has the shape \[4\] in the file, but \[1\]"):
        load_backbone(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("open_clip:ViT-B-16-SigLIP2/webly", r"did you mean webli.*no such file or folder; its tags: webli"),
        (
            "open_clip:ViT-B-16-SigLIP2/webli",
            r"put the files of the model's repository .*ViT-B-16-SigLIP2/<path to the",
        ),
        (
            "transformers:google/siglip2-base-patch16-224",
            r"give a folder .*transformers:<path to the folder>",
        ),
        ("transformers:/nowhere/at/all", r"could not be loaded .*transformers:<path to the folder>"),
    ],
)
def test_files_that_cannot_be_fetched_name_the_local_alternative(name: str, message: str) -> None:
    with pytest.raises(BackboneUnavailable, match=message):
        load_backbone(name)


@pytest.mark.parametrize(
    "name", ["open_clip:ViT-B-16-SigLIP2/webli", "transformers:google/siglip2-base-patch16-224"]
)
def test_unreachable_hub_is_asked_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("its client tries again"))
    with pytest.raises(BackboneUnavailable, match=r"huggingface.co does not answer\). Without .* folder"):
        load_backbone(name)
    assert not huggingface_hub.constants.HF_HUB_OFFLINE


def test_other_architectures_are_refused_by_type(tmp_path: Path) -> None:
    BertConfig(**HIDDEN).save_pretrained(tmp_path)
    with pytest.raises(BackboneUnsupported, match="is of type 'bert', which is no dual encoder"):
        load_backbone(f"transformers:{tmp_path}")
    (tmp_path / "config.json").write_text('{"model_type": "evil"}')
    with pytest.raises(BackboneUnsupported, match="is of type 'evil', which is not supported"):
        load_backbone(f"transformers:{tmp_path}")


@pytest.mark.parametrize("kind", ["siglip", "hf-text"])
def test_code_of_a_checkpoint_is_not_executed(kind: str, tmp_path: Path) -> None:
    name = (write_transformers if kind == "siglip" else write_cut)(kind, tmp_path)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    names = dict.fromkeys(("AutoConfig", "AutoModel", "AutoImageProcessor", "AutoProcessor"), "evil.Evil")
    for file in tmp_path.glob("*config.json"):
        settings = {**json.loads(file.read_text()), "auto_map": {**names, "AutoTokenizer": ["evil.Evil"] * 2}}
        if "model_cfg" in settings:
            settings["model_cfg"]["text_cfg"]["tokenizer_kwargs"] = {"trust_remote_code": True}
        file.write_text(json.dumps(settings))
    load_backbone(name)
    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    assert not (tmp_path / "ran").exists()
    if kind == "siglip":
        with pytest.raises(BackboneUnavailable, match="could not be loaded"):
            load_backbone(name)
    else:
        load_backbone(name)  # torch's restricted unpickler


def test_tokens_are_the_same_in_several_threads(tmp_path: Path) -> None:
    backbone = load_query_backbone(write_transformers("chinese_clip", tmp_path))
    texts = ["a red circle " * (n % 5 + 1) for n in range(60)]
    expected = [backbone.tokenize([text])[0].tolist() for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert [
            ids[0].tolist() for ids in pool.map(lambda text: backbone.tokenize([text]), texts)
        ] == expected
    assert len({len(ids) for ids in expected}) > 1, "masked texts need no padding"


def test_service_refuses_exactly_the_methods_that_cannot_run(tmp_path: Path) -> None:
    name = write_cut("timm", tmp_path)
    backbone = load_backbone(name, 2)
    for method in METHOD_NAMES:
        is_refused = find_method_error(method, name) is not None
        with pytest.raises(BackboneUnsupported, match="frozen encoder") if is_refused else nullcontext():
            start_method(method, backbone, {}, None)


def test_frozen_videos_are_encoded_with_their_features(tmp_path: Path) -> None:
    backbone = load_backbone(write_cut("timm", tmp_path), 2)
    method = start_method("zero_shot", backbone, {}, None)
    frames = random_frames(0, 2, 2, size=160)
    expected = backbone.project_features(backbone.video_features(frames))
    torch.testing.assert_close(method.encode_videos(frames), expected, atol=1e-6, rtol=0)
    with pytest.raises(BackboneUnsupported, match="frozen encoder"):
        _ = backbone.visual_blocks


def test_shard_is_continued_in_the_precision_that_embedded_it(tmp_path: Path) -> None:
    backbone, again = (load_backbone(write_cut("vit", tmp_path), 2) for _ in range(2))
    frames = random_frames(0, 2, 2, size=32)
    vectors = {}
    for backbone.image_precision in ("float32", "bfloat16"):
        method = start_method("zero_shot", backbone, {}, None)
        vectors[method.fingerprint()] = method.encode_videos(frames).numpy()
        method.record_task("one", "one", [])
    exact, rounded = vectors.values()
    assert 0 < np.abs(exact - rounded).max() < 0.01
    for fingerprint, expected in [*vectors.items()] * 2:
        encoder = VideoEncoder(again, {"one": fingerprint}, {"one": method.release()})
        for _ in range(2):
            np.testing.assert_array_equal(encoder.encode(frames, ["one"])[:, 0], expected)
    with pytest.raises(ReleaseError, match="lacks the video encoder that embedded it"):
        VideoEncoder(again, {"one": "f" * 64}, {"one": method.release()}).encode(frames, ["one"])


def test_frames_pass_in_smaller_parts_where_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = load_backbone(write_cut("vit", tmp_path), 2)
    assert isinstance(backbone, FrozenEncoder)
    frames, embed = random_frames(0, 2, 2, size=32), backbone._embed_images
    expected = backbone.video_features(frames)
    for most in (1, 0):

        def embed_few(pixels: torch.Tensor, most: int = most) -> torch.Tensor:
            if len(pixels) > most:
                raise torch.OutOfMemoryError
            return embed(pixels)

        monkeypatch.setattr(backbone, "_embed_images", embed_few)
        with nullcontext() if most else pytest.raises(torch.OutOfMemoryError):
            torch.testing.assert_close(backbone.video_features(frames), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["siglip", "hf-text"])
def test_analytic_learns_words_and_maps_on_a_frozen_encoder(kind: str, tmp_path: Path) -> None:
    """A release is written, and searched by the text tower alone; each caption finds its own video first."""
    name = write_cut(kind, tmp_path)
    backbone = load_backbone(name, 2)
    captions = ["a red circle", "two blue stars", "a heron by the lake", "rain falls on a roof"]
    frames = random_frames(0, len(captions), 2, size=160 if kind == "siglip" else 32)
    method = start_method("analytic", backbone, {"semantic_penalty": 1.0, "lexical_penalty": 1.0}, None)
    method.begin_task("one", "one")
    method.observe(frames, [[caption] for caption in captions])
    method.end_task()
    method.record_task("one", "one", captions)
    (tmp_path / "release").mkdir()
    write_release(tmp_path / "release", method.release())
    release = read_query_release(tmp_path / "release")
    encoder = open_query_encoder(load_query_backbone(name, 2), release, {"one": release})
    queries, videos = encoder.encode(captions, ["one"], "pinned")[:, 0], method.encode_videos(frames).numpy()
    assert queries.shape == videos.shape == (len(captions), backbone.dim + 128)
    assert (queries @ videos.T).argmax(axis=1).tolist() == [0, 1, 2, 3]
    assert encoder.routing_evidence(encoder.tokenize(captions), ["one"]) is not None
    appended = VideoEncoder(
        backbone, {"one": release.fingerprint}, {"one": read_video_release(tmp_path / "release")}
    )
    np.testing.assert_allclose(appended.encode(frames, ["one"])[:, 0], videos, atol=1e-6)
