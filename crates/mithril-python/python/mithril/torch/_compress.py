"""Whole models: their layers replaced by coded ones, saved and loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

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
from mithril.torch._report import CodingReport, reason_of_class, reason_of_weight, warn


def compress_module(
    model: nn.Module,
    kind: Kind = "entropy",
    *,
    source: Path | Mapping[str, torch.Tensor] | None = None,
    names: Callable[[str], str] | None = None,
    arithmetic: Arithmetic = "torch",
    threads: int = 0,
) -> nn.Module:
    """Replaces every `nn.Linear` and `nn.Embedding` of a model by one whose weights stay coded; returns the model.

    The model is changed in place; one that is itself such a layer cannot be, and the coded layer is returned.

    `kind` is `entropy`, the smallest (about 10.7 bits per weight), or `fixed12` (12 bits, quicker to decode). Layers
    that share a weight share its codes. Weights that are not bf16 to the last bit stay as they are, as do layers that
    are subclasses of the two and embeddings with `max_norm`, which change their own weights. A `UserWarning` says how many
    layers are coded if none is, or if weights of another type were left; `coding_report` says it of every layer.

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
    find = _weight_finder(kind) if source is None else _quantised_finder(source, names or str)
    coded: list[str] = []
    kept: dict[str, str] = {}
    unexpected: set[str] = set()

    def replacement(name: str, module: nn.Module) -> nn.Module | None:
        found = find(name, module)
        if isinstance(found, _Kept):
            kept[name] = found.reason
            if found.is_unexpected:
                unexpected.add(name)
            return None
        coded.append(name)
        return _replaced(module, found, module.weight.dtype, arithmetic, threads)

    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Embedding)) and (reason := reason_of_class(module)) is not None:
            kept[name] = reason
    model = _walk(model, replacement)
    warn(CodingReport(tuple(coded), kept), unexpected, 2)
    return model


class _Kept(NamedTuple):
    """Why a layer stays as it is, and whether that may surprise."""

    reason: str
    is_unexpected: bool


_Finder = Callable[[str, nn.Module], Matrix | _Kept]


def _weight_finder(kind: Kind) -> _Finder:
    """Codes the weights of layers; those that layers share, once."""
    coded: dict[int, Matrix | _Kept] = {}

    def find(_: str, module: nn.Module) -> Matrix | _Kept:
        weight = module.weight
        if id(weight) not in coded:
            try:
                coded[id(weight)] = matrix_of_weight(weight, kind)
            except ValueError as error:
                coded[id(weight)] = _Kept(reason_of_weight(module) or str(error), True)
        return coded[id(weight)]

    return find


def _quantised_finder(source: Path | Mapping[str, torch.Tensor], names: Callable[[str], str]) -> _Finder:
    """Takes the matrices of an entropy-coded file."""
    state = dict(source) if isinstance(source, Mapping) else _load_file(source)
    matrices: dict[str, Matrix] = {}

    def find(name: str, module: nn.Module) -> Matrix | _Kept:
        name = names(name)
        parts = _parts(state, name)
        if PARTS[0] not in parts:
            return _Kept("the source has no matrix of that name", False)
        weight = module.weight
        if name not in matrices:
            matrices[name] = _named_matrix(name, parts)
        if not weight.is_meta and not is_matrix_of(matrices[name], weight):
            return _Kept("its matrix in the source decodes to other weights", True)
        return matrices[name]

    return find


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
        return _replaced(module, _named_matrix(name, parts), module.weight.dtype, arithmetic, threads)

    model = _walk(model, replacement)
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


def _replaced(module: nn.Module, matrix: Matrix, dtype: torch.dtype, arithmetic: Arithmetic, threads: int) -> nn.Module:
    if isinstance(module, nn.Linear):
        return EntropyCodedLinear(matrix, module.bias, dtype=dtype, arithmetic=arithmetic, threads=threads)
    assert isinstance(module, nn.Embedding)
    return EntropyCodedEmbedding(matrix, dtype=dtype, padding_idx=module.padding_idx, threads=threads)


def _walk(model: nn.Module, replacement: Callable[[str, nn.Module], nn.Module | None]) -> nn.Module:
    """Replaces plain layers by what `replacement(name, layer)` gives, where it gives something; returns the model."""
    for name, parent in list(model.named_modules(remove_duplicate=False)):
        for child_name, child in list(parent.named_children()):
            if _is_plain(child):
                full_name = f"{name}.{child_name}" if name else child_name
                new = replacement(full_name, child)
                if new is not None:
                    setattr(parent, child_name, new)
    return replacement("", model) or model if _is_plain(model) else model


def _is_plain(module: nn.Module) -> bool:
    return isinstance(module, (nn.Linear, nn.Embedding)) and reason_of_class(module) is None


def _load_file(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    state: dict[str, torch.Tensor] = load_file(path)
    return state
