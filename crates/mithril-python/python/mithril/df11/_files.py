"""Where DFloat11 directories are, and their tensors, decoded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

from mithril import _mithril
from mithril._types import Path

# The six tensors that stand for the weights of a module; decoders need the first five.
PARTS = ("luts", "encoded_exponent", "sign_mantissa", "output_positions", "gaps", "split_positions")


def locate(path: Path | None, component: str | None = None) -> FilePath:
    """The place of a model: as it is given, or below the directory that `MITHRIL_DF11_ROOT` names."""
    root = os.environ.get("MITHRIL_DF11_ROOT")
    if path is None:
        if not root:
            raise ValueError("no path is given, and MITHRIL_DF11_ROOT is not set")
        found = FilePath(root)
    else:
        found = FilePath(path)
        if root and not found.is_absolute() and not found.exists() and (FilePath(root) / found).exists():
            found = FilePath(root) / found
    if component is not None:
        found = found / component
    if not found.exists():
        below = f", nor in MITHRIL_DF11_ROOT ({root})" if root else ""
        raise _mithril.NotFoundError(f"there is no `{found}`{below}")
    return found


def load_state_dict(
    path: Path | None,
    *,
    component: str | None = None,
    device: Any = "cpu",
    shapes_from: Path | None = None,
    threads: int = 0,
) -> dict[str, Any]:
    """The tensors of the model that a DFloat11 directory stands for, by name, as tensors of torch.

    Args:
        path: the directory; None is the root.
        component: which component of a pipeline.
        device: where the tensors go. They are decoded on the CPU.
        shapes_from: a model with the same names, for shapes that the directory lacks. Without one, a weight whose shape
            nobody knows has one dimension.
        threads: 0 is one per core.

    Raises:
        CorruptError: a module is damaged. It is named.
    """
    from mithril._adapters import torch as adapter

    directory = _mithril.Df11Directory.open(locate(path, component), shapes_from)
    coded = {f"{module}.{part}" for module, _ in directory.modules() for part in PARTS}
    state = {name: tensor.to(device) for name, tensor in read(directory) if name not in coded}
    for module, weights in directory.modules():
        parts = read_parts(directory, module)
        run, memory = adapter.empty("BF16", (weights[-1][4],), 2 * weights[-1][4])
        decode(module, parts, directory.geometry(), memory, threads=threads)
        for name, shape, _, start, end in weights:
            state[name] = run[start:end].reshape(shape).to(device)
    return dict(sorted(state.items()))


def read(directory: _mithril.Df11Directory, names: set[str] | None = None) -> Iterator[tuple[str, Any]]:
    """The tensors of the files as they lie there, or those of these names."""
    from mithril._adapters import torch as adapter

    for name, dtype, shape in directory.tensors():
        if names is None or name in names:
            tensor, memory = adapter.empty(dtype, shape, 0)
            directory.read_into(name, memory)
            yield name, tensor


def read_parts(directory: _mithril.Df11Directory, module: str) -> dict[str, Any]:
    """The six tensors of a module."""
    names = {f"{module}.{part}" for part in PARTS}
    return {name.rpartition(".")[2]: tensor for name, tensor in read(directory, names)}


def decode(
    module: str, parts: dict[str, Any], geometry: tuple[int, int], memory: Any, rows: Any = None, threads: int = 0
) -> None:
    """Decode a run into memory of the right length; `rows` are numbers that rise and the elements of a row."""
    from mithril._adapters import torch as adapter

    luts, codes, signs, positions, gaps = (adapter.memory(parts[part]) for part in PARTS[:5])
    _mithril.df11_decode_into(module, (luts, codes, signs, positions, gaps), geometry, rows, memory, threads)
