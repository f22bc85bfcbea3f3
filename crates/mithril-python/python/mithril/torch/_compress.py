"""Whole models: their layers replaced by coded ones, saved and loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from mithril._mithril import MithrilError
from mithril._types import Path
from mithril.torch._modules import (
    PARTS,
    Arithmetic,
    EntropyCodedEmbedding,
    EntropyCodedLinear,
    Kind,
    Matrix,
    _Coded,
    is_matrix_of,
    matrix_of,
    matrix_of_weight,
)


def compress_module(
    model: nn.Module,
    kind: Kind = "entropy",
    *,
    source: Path | Mapping[str, torch.Tensor] | None = None,
    names: Callable[[str], str] | None = None,
    arithmetic: Arithmetic = "torch",
    threads: int = 0,
) -> nn.Module:
    """Replaces every `nn.Linear` and `nn.Embedding` below a module by one whose weights stay coded; returns the module.

    `kind` is `entropy`, the smallest (about 10.7 bits per weight), or `fixed12` (12 bits, quicker to decode). Layers
    that share a weight share its codes. Weights that are not bf16 to the last bit stay as they are, as do layers that
    are subclasses of the two and embeddings with `max_norm`, which change their own weights.

    `ecq` is for models whose weights came quantised: `source` is the file that `mithril convert --to ecq` made of the
    quantised one, or its tensors, and `names` tells the name of a layer's matrix there (for GGUF `blk.0.attn_q.weight`;
    by default the name of the layer). A layer is replaced if that matrix decodes to its weights, bit for bit; one on the
    device `meta` has none to compare.

    With the `arithmetic` `torch`, a layer decodes its weights and leaves the product to torch: outputs are those of the
    plain layer, bit for bit. With `fused`, weights go from their codes into sums and never stand in memory, for one
    vector, or for up to eight of weights that came quantised; sums are added in an order of our own, so outputs differ
    from torch's in the last bits.
    """
    if (kind == "ecq") != (source is not None):
        raise ValueError("`source` is for `kind='ecq'`, which needs it: weights that came quantised, entropy-coded")
    if source is not None:
        return _take_quantised(model, source, names or str, arithmetic, threads)
    coded: dict[int, Any] = {}

    def replacement(module: nn.Module) -> nn.Module | None:
        weight = module.weight
        if not isinstance(weight, torch.Tensor) or weight.dim() != 2 or weight.numel() == 0:
            return None
        if id(weight) not in coded:
            try:
                coded[id(weight)] = matrix_of_weight(weight, kind)
            except ValueError:
                coded[id(weight)] = None
        return _replace(module, coded[id(weight)], weight.dtype, arithmetic, threads)

    _walk(model, lambda _, module: replacement(module))
    return model


def _take_quantised(
    model: nn.Module,
    source: Path | Mapping[str, torch.Tensor],
    names: Callable[[str], str],
    arithmetic: Arithmetic,
    threads: int,
) -> nn.Module:
    """Replaces the layers whose weights are matrices of an entropy-coded file."""
    state = dict(source) if isinstance(source, Mapping) else _load_file(source)
    matrices: dict[str, Matrix] = {}

    def replacement(name: str, module: nn.Module) -> nn.Module | None:
        name = names(name)
        parts = _parts(state, name)
        if PARTS[0] not in parts:
            return None
        weight = module.weight
        assert isinstance(weight, torch.Tensor)
        if name not in matrices:
            matrices[name] = _named_matrix(name, parts)
        is_same = weight.is_meta or is_matrix_of(matrices[name], weight)
        return _replace(module, matrices[name], weight.dtype, arithmetic, threads) if is_same else None

    _walk(model, replacement)
    return model


def _parts(state: Mapping[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    return {part: state[f"{name}.{part}"] for part in PARTS if f"{name}.{part}" in state}


def _named_matrix(name: str, parts: Mapping[str, torch.Tensor]) -> Matrix:
    try:
        return matrix_of(parts)
    except MithrilError as error:
        raise type(error)(f"`{name}`: {error}") from None


def load_module(
    model: nn.Module,
    source: Path | Mapping[str, torch.Tensor],
    *,
    arithmetic: Arithmetic = "torch",
    threads: int = 0,
) -> nn.Module:
    """Fills a model from coded weights: a file of `save_module`, a model that `mithril quantize` made, or a state.

    Layers whose weights are coded there are replaced; everything else is loaded as usual. The model may be on the
    device `meta`: what is coded is never decoded for loading.
    """
    state = dict(source) if isinstance(source, Mapping) else _load_file(source)

    def replacement(name: str, module: nn.Module) -> nn.Module | None:
        parts = _parts(state, name)
        if PARTS[0] not in parts:
            return None
        weight = module.weight
        assert isinstance(weight, torch.Tensor)
        return _replace(module, _named_matrix(name, parts), weight.dtype, arithmetic, threads)

    _walk(model, replacement)
    on_meta = any(tensor.is_meta for tensor in model.parameters())
    model.load_state_dict(state, assign=on_meta)
    return model


def save_module(model: nn.Module, path: Path) -> None:
    """Writes the state of a model with coded layers to a safetensors file, in the layout of entropy-coded models."""
    from safetensors.torch import save_file

    kinds = sorted({module.matrix.kind for module in model.modules() if isinstance(module, _Coded)})
    if not kinds:
        raise ValueError("the model has no coded layers: call `compress_module` first")
    description = {"type": "entropy_coded", "version": 1, "n_streams": 32, "bits": 12, "group_size": 0, "mode": "bf16"}
    metadata = {
        "format": "pt",
        "quantization": json.dumps(description),
        "ecq": json.dumps({"version": 1, "source": None}),
    }
    save_file(model.state_dict(), path, metadata)


def resident_bytes(model: nn.Module) -> int:
    """Bytes that a model keeps in memory: coded weights, parameters and buffers; those that are shared, once."""
    coded = {id(module.matrix): module.matrix for module in model.modules() if isinstance(module, _Coded)}
    plain = {tensor.data_ptr(): tensor for tensor in [*model.parameters(), *model.buffers()]}
    n_plain: int = sum(tensor.numel() * tensor.element_size() for tensor in plain.values())
    return n_plain + sum(matrix.resident_bytes for matrix in coded.values())


def _replace(module: nn.Module, matrix: Any, dtype: torch.dtype, arithmetic: Arithmetic, threads: int) -> nn.Module | None:
    if matrix is None:
        return None
    if isinstance(module, nn.Linear):
        return EntropyCodedLinear(matrix, module.bias, dtype=dtype, arithmetic=arithmetic, threads=threads)
    assert isinstance(module, nn.Embedding)
    return EntropyCodedEmbedding(matrix, dtype=dtype, padding_idx=module.padding_idx, threads=threads)


def _walk(model: nn.Module, replacement: Any) -> None:
    """Replaces plain layers by what `replacement(name, layer)` gives, where it gives something."""
    for name, parent in list(model.named_modules(remove_duplicate=False)):
        for child_name, child in list(parent.named_children()):
            plain_embedding = type(child) is nn.Embedding and child.max_norm is None
            if type(child) is nn.Linear or plain_embedding:
                full_name = f"{name}.{child_name}" if name else child_name
                new = replacement(full_name, child)
                if new is not None:
                    setattr(parent, child_name, new)


def _load_file(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    state: dict[str, torch.Tensor] = load_file(path)
    return state
