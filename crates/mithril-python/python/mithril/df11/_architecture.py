"""Models built from their configuration alone, without memory for weights that come from elsewhere."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from mithril._mithril import UnsupportedError
from mithril._types import Path


def build(config: dict[str, Any], path: Path) -> Any:
    """The model that a `config.json` describes, its parameters on `meta`, in BF16."""
    if "_class_name" in config:
        return _build_diffusers(config)
    if "model_type" in config:
        return _build_transformers(config, path)
    raise UnsupportedError(
        "`config.json` has neither `model_type` (transformers) nor `_class_name` (diffusers): "
        "build the model yourself and pass it as `bfloat16_model`"
    )


def _build_transformers(config: dict[str, Any], path: Path) -> Any:
    import torch

    transformers = _package("transformers")
    described = transformers.AutoConfig.from_pretrained(path)
    described.dtype = torch.bfloat16
    names = config.get("architectures") or []
    known = [getattr(transformers, name) for name in names if hasattr(transformers, name)]
    with _without_memory(torch.bfloat16):
        model = known[0](described) if known else transformers.AutoModel.from_config(described)
    model.tie_weights()
    return model


def _build_diffusers(config: dict[str, Any]) -> Any:
    import torch

    name = config["_class_name"]
    found = getattr(_package("diffusers"), name, None)
    if found is None:
        raise UnsupportedError(f"this version of diffusers has no `{name}`")
    with _without_memory(torch.bfloat16):
        return found.from_config({key: value for key, value in config.items() if key != "dfloat11_config"})


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnsupportedError(f"building the model needs the package `{name}`; or pass `bfloat16_model`") from error


@contextlib.contextmanager
def _without_memory(dtype: Any) -> Iterator[None]:
    """Parameters go to `meta` as soon as they are registered. Buffers stay: no file has those that a model computes."""
    import torch
    from torch import nn

    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, parameter: Any) -> None:
        register(module, name, parameter)
        if module._parameters.get(name) is not None:
            module._parameters[name] = nn.Parameter(module._parameters[name].to("meta"), requires_grad=False)

    before = torch.get_default_dtype()
    nn.Module.register_parameter = register_on_meta
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
        nn.Module.register_parameter = register
