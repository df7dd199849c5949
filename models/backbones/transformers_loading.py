"""Loading of single towers with the transformers library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_NAME, logging
from transformers.utils.hub import cached_file

from models.errors import BackboneUnavailable, BackboneUnsupported


@contextmanager
def silent_library() -> Iterator[None]:
    """Context in which the library reports neither progress nor warnings."""
    library_logging: Any = logging
    verbosity = library_logging.get_verbosity()
    has_progress_bar = library_logging.is_progress_bar_enabled()
    library_logging.set_verbosity_error()
    library_logging.disable_progress_bar()
    try:
        yield
    finally:
        library_logging.set_verbosity(verbosity)
        if has_progress_bar:
            library_logging.enable_progress_bar()


def read_config(name: str, source: str, classes: dict[str, type[PreTrainedModel]]) -> Any:
    """Configuration of a model.

    Raises:
        BackboneUnsupported: The model has another architecture than ``classes``.
    """
    settings, _ = PreTrainedConfig.get_config_dict(source)
    model_type = settings.get("model_type")
    if model_type not in classes:
        raise BackboneUnsupported(
            f"backbone {name!r}: {source!r} is of type {model_type!r}; this tower must be {' or '.join(classes)}"
        )
    return cast(Any, classes[model_type].config_class).from_dict(settings)


def load_tower(
    name: str, source: str, classes: dict[str, type[PreTrainedModel]], key: str
) -> tuple[Any, Tensor | None]:
    """Load a tower without heads.

    Args:
        name: Name of the backbone, for errors.
        source: Model name or folder.
        classes: Supported architectures, by their type in ``config.json``.
        key: Name of a projection in the checkpoint.

    Returns:
        The tower, and the projection; None if the checkpoint has none.

    Raises:
        BackboneUnavailable: The weights do not fit the configuration.
        BackboneUnsupported: The model has another architecture.
    """
    config = read_config(name, source, classes)
    model, report = cast(Any, classes[config.model_type]).from_pretrained(
        source,
        config=config,
        add_pooling_layer=False,
        attn_implementation="sdpa",  # otherwise a checkpoint could name an implementation that is code on the hub
        dtype=torch.float32,
        use_safetensors=True,
        output_loading_info=True,
    )
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise BackboneUnavailable(
            f"backbone {name!r}: the weights of {source!r} do not fit its config.json: {len(missing)} are missing, "
            f"the first is {missing[0]}"
        )
    if key not in report["unexpected_keys"]:
        return model, None
    with safe_open(cached_file(source, SAFE_WEIGHTS_NAME), framework="pt") as file:
        return model, file.get_tensor(key).float()
