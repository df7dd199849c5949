"""Device settings of the index and of the text tower."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import pytest
import torch
from pydantic import ValidationError

from index.errors import DeviceMissing
from models.errors import ModelError
from service.core.settings import Settings
from service.search.engine import SearchEngine


def test_missing_gpu_is_reported_at_startup(
    tmp_path: Path, settings_factory: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(faiss, "StandardGpuResources", raising=False)
    with pytest.raises(DeviceMissing, match="CINESTRATA_INDEX_DEVICE=cuda"):
        SearchEngine(settings_factory(tmp_path, index_device="cuda"))
    SearchEngine(settings_factory(tmp_path, index_device="auto"))  # searches run on the CPU


def test_missing_gpu_of_the_text_tower_is_reported_at_startup(
    tmp_path: Path, settings_factory: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match="CINESTRATA_QUERY_DEVICE: device 'cuda' needs a GPU"):
        SearchEngine(settings_factory(tmp_path, query_device="cuda"))
    SearchEngine(settings_factory(tmp_path, query_device="auto"))  # searches run on the CPU


@pytest.mark.parametrize("wrong", [{"index_device": "tpu"}, {"query_device": "tpu"}])
def test_invalid_index_settings_raise_with_their_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        Settings(**wrong)
