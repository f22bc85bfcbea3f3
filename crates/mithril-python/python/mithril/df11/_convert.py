"""Models to DFloat11 directories, and back."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from mithril import _mithril
from mithril._progress import callback
from mithril._types import Path, Progress
from mithril.df11._files import locate


@dataclass(frozen=True)
class Summary:
    """What became of a model."""

    original_size: int
    """Bytes of its tensors before."""
    compressed_size: int
    """Bytes of its tensors after."""
    modules: int
    """Modules that were coded."""
    threads_per_block: int
    """Threads of a workgroup, as few as `shared_memory` asks for."""
    kept: dict[str, str] = field(default_factory=dict)
    """Modules that DFloat11 cannot hold and that stayed BF16, with the reason."""

    @property
    def ratio(self) -> float:
        """Bytes after by bytes before."""
        return self.compressed_size / max(self.original_size, 1)


def compress_model(
    model: Any,
    pattern_dict: Mapping[str, Sequence[str]] | None = None,
    *,
    save_path: Path,
    save_single_file: bool = True,
    block_range: Sequence[int] | None = None,
    check_correctness: bool = True,
    component: str | None = None,
    threads_per_block: int = 512,
    bytes_per_thread: int = 8,
    shared_memory: int | None = None,
    threads: int = 0,
    replace: bool = False,
    progress: Progress = None,
) -> Summary:
    """Write a model as a DFloat11 directory, the same bytes as the package `dfloat11` writes.

    Args:
        model: a safetensors file, a directory of them with all that belongs to it, a diffusers pipeline, or a torch module.
            Files are read in pieces; the weights of a module are first written to a file beside `save_path`.
        pattern_dict: regular expressions for whole names of modules, each with the submodules whose weights are coded
            together. By default every Linear and Embedding is coded alone, its name escaped.
        save_path: directory to write. It appears whole or not at all.
        save_single_file: False writes a file for each coded module.
        block_range: only modules behind the first of these numbers, up to the second; `mithril merge` puts parts together.
        check_correctness: decode every module again and compare all bits, while encoding.
        component: which component of a pipeline; without it, all large ones are coded and the rest is carried along.
        threads_per_block, bytes_per_thread: how a GPU will share the work; the package's kernel needs 8 bytes.
        shared_memory: bytes of shared memory that the GPU has for a workgroup: workgroups get as few threads as it takes.
        threads: 0 is one per core. The bytes do not depend on it.
        replace: write over the files of a directory that is there.
        progress: True for a bar, or a function `(done, total, name)`.

    Raises:
        ValueError: there is nothing to code, or an argument contradicts another.
        OSError: a file cannot be read or written. Nothing is left behind.
    """
    patterns = None if pattern_dict is None else [(name, list(parts)) for name, parts in pattern_dict.items()]
    blocks = None if block_range is None else (int(block_range[0]), int(block_range[1]))
    geometry = threads_per_block, bytes_per_thread, shared_memory

    def encode(source: Path, patterns: list[tuple[str, list[str]]] | None) -> Summary:
        with callback(progress) as told:
            coding = patterns, save_single_file, *geometry, blocks, check_correctness, threads
            return _summary(_mithril.df11_encode(source, save_path, coding, replace, told))

    if not hasattr(model, "state_dict"):
        return encode(locate(model, component), patterns)
    if component is not None:
        model = getattr(model, component)
    if patterns is None:
        patterns = _linear_and_embedding(model)
    with tempfile.TemporaryDirectory(prefix=".df11-", dir=_parent(save_path)) as folder:
        _write_module(model, FilePath(folder))
        return encode(folder, patterns)


def _summary(encoded: list[tuple[str, int, int, int, int, list[tuple[str, str]]]]) -> Summary:
    return Summary(
        original_size=sum(raw for _, raw, *_ in encoded),
        compressed_size=sum(coded for _, _, coded, *_ in encoded),
        modules=sum(modules for _, _, _, modules, *_ in encoded),
        threads_per_block=min(threads for *_, threads, _ in encoded),
        kept={f"{part}.{name}" if part else name: reason for part, *_, kept in encoded for name, reason in kept},
    )


def decompress_model(
    path: Path | None,
    save_path: Path,
    *,
    component: str | None = None,
    shapes_from: Path | None = None,
    threads: int = 0,
    replace: bool = False,
    progress: Progress = None,
) -> list[str]:
    """Write the plain BF16 weights of a DFloat11 directory, with everything else that is in it.

    What mithril encoded comes back as the files that it was made of, byte for byte, with their shards and index; other
    directories as one `model.safetensors`.

    Args:
        path: the directory, or a pipeline of them; None is the root.
        save_path: directory to write. It appears whole or not at all.
        component: which component of a pipeline.
        shapes_from: a model with the same names, for shapes that the directory lacks.
        threads: 0 is one per core.
        replace: write over the files of a directory that is there.
        progress: True for a bar, or a function `(done, total, name)`.

    Returns:
        Names of weights whose shape nobody knows, which have one dimension.

    Raises:
        CorruptError: a module is damaged. It is named.
    """
    with callback(progress) as told:
        decoded = _mithril.df11_decode(locate(path, component), save_path, shapes_from, threads, replace, told)
    return [name for *_, flat in decoded for name in flat]


def _parent(save_path: Path) -> FilePath:
    parent = FilePath(save_path).absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    return parent


def _linear_and_embedding(model: Any) -> list[tuple[str, list[str]]]:
    """A pattern for each BF16 Linear and Embedding; one of several that share a weight."""
    import torch

    found: dict[int, str] = {}
    for name, module in model.named_modules():
        if name and isinstance(module, (torch.nn.Linear, torch.nn.Embedding)):
            weight = module._parameters.get("weight")
            if weight is not None and weight.dtype == torch.bfloat16 and weight.numel():
                found.setdefault(id(weight), name)
    if not found:
        raise ValueError("the model has no Linear or Embedding with BF16 weights")
    return [(re.escape(name), []) for name in found.values()]


def _write_module(model: Any, folder: FilePath) -> None:
    """The weights of a module as a safetensors file, each once, and its configuration if it has one."""
    from mithril._adapters import torch as adapter

    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    tensors: dict[int, Any] = {}
    end = 0
    for name, tensor in model.state_dict(keep_vars=True).items():
        # Weights that several modules share are written once, under the first of their names.
        if id(tensor) not in tensors:
            tensors[id(tensor)] = tensor
            start, end = end, end + tensor.numel() * tensor.element_size()
            dtype = adapter.dtype_name(tensor.dtype)
            header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(adapter.borrow(tensor)[0])
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_json_string"):
        (folder / "config.json").write_text(config.to_json_string())
