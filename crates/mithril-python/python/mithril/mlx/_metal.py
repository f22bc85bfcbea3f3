"""Coded levels times a vector in one Metal kernel, for devices that have Metal.

Its arithmetic is tested everywhere, through the same source compiled for the host (`tests/test_metal.py`); on a device it
was never run.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from mithril._mithril import CodedMatrix, CorruptError

INPUTS = ("params", "blocks", "data", "low", "slots", "factors")
OUTPUTS = ("sums", "faults")

_HEADER_LEN = 64
_LEVELS_LAYOUT = 5


def source() -> str:
    """The body of the kernel, for `mx.fast.metal_kernel`."""
    return (Path(__file__).parent / "ecq_gemv.metal").read_text()


class Levels:
    """A matrix of levels as the kernel takes it."""

    def __init__(self, parts: Mapping[str, bytes]) -> None:
        """Takes the tensors of a matrix by their names without that of the matrix, and checks all of them."""
        # The CPU's reader refuses whatever does not fit; what is read below is what it has seen.
        CodedMatrix.from_parts(parts)
        data = np.frombuffer(parts["compressed"], np.uint8)
        if data[5] != _LEVELS_LAYOUT:
            raise ValueError("only levels, as `mithril quantize` makes them, have a kernel")
        rows, columns = (int(n) for n in data[8:24].view(np.uint64))
        per_block = int(data[24:28].view(np.uint32)[0])
        self.rows, self.columns, self.padded = rows, columns, -(-columns // 64) * 64
        self.levels = np.frombuffer(parts["levels"], np.int8)
        low_bits = int(data[48])
        low = np.frombuffer(parts.get("low_bits", b"") or b"\0", np.uint8)
        slots = _slots(np.frombuffer(parts["freq"], np.uint8).reshape(-1, 16))
        offsets = 4 * np.frombuffer(parts["stream_offsets"], np.uint32).astype(np.int64)
        blocks = [
            _block(data, int(start), int(end), at * per_block, min(per_block, rows - at * per_block))
            for at, (start, end) in enumerate(pairwise(offsets))
        ]
        self.arrays: dict[str, np.ndarray[Any, Any]] = {
            "params": np.array([self.padded, low_bits, rows, data.size, low.size, slots.size], np.uint32),
            "blocks": np.array(blocks, np.uint32).reshape(-1),
            "data": data,
            "low": low,
            "slots": slots,
        }

    def factors(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Levels and activations as the kernel takes them."""
        if x.dtype != np.int8 or x.shape != (self.columns,):
            raise ValueError(f"activations are {self.columns} whole numbers of 8 bits, not {x.shape} of {x.dtype}")
        factors = np.zeros(256 + self.padded, np.int32)
        factors[: self.levels.size] = self.levels
        factors[256 : 256 + self.columns] = x
        return factors

    def product(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Sums of levels times activations, one for every row, by a device with Metal."""
        import mlx.core as mx

        if not mx.metal.is_available():
            raise RuntimeError("there is no Metal here")
        kernel: Any = mx.fast.metal_kernel(
            name="mithril_ecq_gemv", input_names=list(INPUTS), output_names=list(OUTPUTS), source=source()
        )
        arrays = {**self.arrays, "factors": self.factors(x)}
        n_blocks = self.arrays["blocks"].size // 8
        sums, faults = kernel(
            inputs=[mx.array(arrays[name]) for name in INPUTS],
            grid=(32 * n_blocks, 1, 1),
            threadgroup=(32, 1, 1),
            output_shapes=[(self.rows,), (n_blocks,)],
            output_dtypes=[mx.int32, mx.uint32],
        )
        if np.array(faults).any():
            raise CorruptError("a block's stream does not end where its symbols do")
        return np.array(sums)


def _block(data: np.ndarray[Any, Any], start: int, end: int, first_row: int, n_rows: int) -> list[int]:
    """Kind, argument, first byte, stream, rows: what the kernel knows of a block."""
    kind, argument = int(data[start]), int(data[start + 1])
    n_escapes = int(data[start + 2]) | int(data[start + 3]) << 8
    content = start + 8 + 8 * n_escapes
    stream = (content + 64, end) if kind == 2 else (0, 0)
    return [kind, argument, content, *stream, first_row, n_rows, 0]


def _slots(tables: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Symbol, rank and frequency of every slot of every table, as docs/format/frame.md assigns them."""
    slots: list[int] = []
    for table in tables.astype(int).tolist():
        left, divider, alias = list(table), [16] * 16, list(range(16))
        small = [symbol for symbol in range(16) if table[symbol] < 16]
        large = [symbol for symbol in range(16) if table[symbol] >= 16]
        while small and large:
            poor, rich = small.pop(), large[-1]
            divider[poor], alias[poor] = left[poor], rich
            left[rich] -= 16 - left[poor]
            if left[rich] < 16:
                small.append(large.pop())
        rank = list(divider)
        for bucket in range(16):
            own = [(bucket, at) for at in range(divider[bucket])]
            other = alias[bucket]
            own += [(other, rank[other] + at) for at in range(16 - divider[bucket])]
            rank[other] += 16 - divider[bucket]
            slots += [symbol | at << 8 | table[symbol] << 16 for symbol, at in own]
    return np.array(slots, np.uint32)
