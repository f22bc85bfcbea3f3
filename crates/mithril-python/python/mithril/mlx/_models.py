"""Whole models of mlx-lm."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import mlx_lm.utils
from mlx.utils import tree_map_with_path

from mithril import _mithril
from mithril._adapters import mlx as adapter
from mithril._adapters import numpy as numpy_adapter
from mithril._mithril import CodedFile, UnsupportedError
from mithril.mlx._layers import CodedWeight, EntropyCodedEmbedding, EntropyCodedLinear

_stock_load_model: Callable[..., Any] = mlx_lm.utils.load_model


def load_weights(path: str | Path) -> dict[str, mx.array]:
    """The original arrays of an entropy-coded model: a directory, or one of its files."""
    weights: dict[str, mx.array] = {}
    for file in _files(Path(path)):
        coded = CodedFile.open(file)
        entries = coded.originals()
        for (name, dtype, shape), data in zip(entries, coded.read_originals([name for name, _, _ in entries]), strict=True):
            filled, memory = numpy_adapter.empty(dtype, shape, len(data))
            memoryview(memory).cast("B")[:] = data
            weights[name] = adapter.finish(filled)
    return weights


def load_model(
    model_path: str | Path,
    *args: Any,
    keep_coded: bool = False,
    get_model_classes: Callable[..., Any] = mlx_lm.utils._get_classes,
    **options: Any,
) -> tuple[nn.Module, dict[str, Any]]:
    """As `mlx_lm.utils.load_model`, of entropy-coded models too; others go to mlx-lm as they are."""
    path = Path(model_path)
    if not _is_coded(path):
        model, config = _stock_load_model(path, *args, get_model_classes=get_model_classes, **options)
        return model, config

    def classes(config: dict[str, Any]) -> tuple[type, type]:
        model_class, arguments_class = get_model_classes(config=config)

        class Decoded(model_class):  # type: ignore[misc, valid-type]
            """The model, with the arrays that its file was made of."""

            def sanitize(self, _: Any) -> Any:
                weights = load_weights(path)
                return super().sanitize(weights) if hasattr(super(), "sanitize") else weights

        return Decoded, arguments_class

    model, config = _stock_load_model(path, *args, get_model_classes=classes, **options)
    if keep_coded:
        _keep_coded(model, path)
    return model, config


def load(path: str | Path, *, keep_coded: bool = False, **options: Any) -> tuple[nn.Module, Any]:
    """As `mlx_lm.load`: the model and its tokenizer."""
    from mlx_lm.utils import load_tokenizer

    config = options.pop("tokenizer_config", None)
    model, model_config = load_model(path, keep_coded=keep_coded, **options)
    tokenizer = load_tokenizer(Path(path), config, eos_token_ids=model_config.get("eos_token_id"))
    model.eval()
    return model, tokenizer


def enable() -> None:
    """Makes `mlx_lm.load` and all that use it take entropy-coded models, in this process."""
    mlx_lm.utils.load_model = load_model


def disable() -> None:
    """Gives mlx-lm its own loader back."""
    mlx_lm.utils.load_model = _stock_load_model


def convert(hf_path: str, mlx_path: str | Path = "mlx_model", **options: Any) -> None:
    """As `mlx_lm.convert`, with weights entropy-coded: needs `quantize=True`, or a model that is quantised already."""
    target = Path(mlx_path)
    packed = target.with_name(target.name + ".packed")
    mlx_lm.convert(hf_path, str(packed), **options)
    code = _mithril.run_cli(["mithril", "convert", str(packed), "--to", "ecq", "-o", str(target)])
    if code != 0:
        raise UnsupportedError(f"`{packed}` could not be entropy-coded; it is left as mlx-lm wrote it")
    for file in sorted(packed.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    packed.rmdir()


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(path.glob("model*.safetensors"))
    if not files:
        raise FileNotFoundError(f"no model*.safetensors in `{path}`")
    return files


def _is_coded(path: Path) -> bool:
    try:
        config = json.loads((path / "config.json").read_text())
    except OSError:
        return False
    quantization = config.get("quantization") or {}
    return isinstance(quantization, dict) and quantization.get("type") == "entropy_coded"


def _keep_coded(model: nn.Module, path: Path) -> None:
    """Replaces quantised layers by ones whose weights stay in the coded file, where it has them under their own names."""
    places: dict[str, CodedWeight] = {}
    for file in _files(path):
        coded = CodedFile.open(file)
        for name, dtype, shape in coded.originals():
            if name.endswith(".weight") and dtype == "U32":
                places[name.removesuffix(".weight")] = CodedWeight(coded, name, tuple(shape))

    def replace(name: str, layer: Any) -> Any:
        weight = places.get(name)
        if weight is None or tuple(layer["weight"].shape) != weight.shape:
            return layer
        if type(layer) is nn.QuantizedLinear:
            return EntropyCodedLinear(layer, weight)
        return EntropyCodedEmbedding(layer, weight)

    kinds = (nn.QuantizedLinear, nn.QuantizedEmbedding)
    replaced = tree_map_with_path(
        lambda name, layer: replace(name, layer) if type(layer) in kinds else layer,
        model.leaf_modules(),
        is_leaf=nn.Module.is_module,
    )
    model.update_modules(replaced)
