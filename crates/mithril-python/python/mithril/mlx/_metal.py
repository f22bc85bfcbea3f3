"""Coded matrices decoded, and coded levels times a vector, by kernels for devices that have Metal.

Their arithmetic is tested everywhere, through the same sources compiled for the host (`tests/test_metal.py`); on a device
they were never run.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from mithril._mithril import CodedMatrix, CorruptError, QuantisedMatrix

DECODE_INPUTS = ("params", "blocks", "data", "low", "slots")
DECODE_OUTPUTS = ("codes", "faults")
INPUTS = (*DECODE_INPUTS, "factors")
OUTPUTS = ("sums", "faults")

# With scales of rows alone, and also of columns.
_LEVELS_LAYOUTS = (5, 7)
_BF16_LAYOUT = 6


def source(name: str = "ecq_gemv") -> str:
    """The body of a kernel, for `mx.fast.metal_kernel`: `ecq_gemv` or `ecq_decode`."""
    return (Path(__file__).parent / f"{name}.metal").read_text()


class Codes:
    """A matrix of codes of at most eight bits as kernels take it."""

    def __init__(self, parts: Mapping[str, bytes]) -> None:
        """Takes the tensors of a matrix by their names without that of the matrix, and checks all of them."""
        data = np.frombuffer(parts["compressed"], np.uint8)
        # The CPU's readers refuse whatever does not fit; what is read below is what they have seen.
        is_own = data.size > 5 and data[5] in (*_LEVELS_LAYOUTS, _BF16_LAYOUT)
        (CodedMatrix if is_own else QuantisedMatrix)(parts)
        if data[5] == _BF16_LAYOUT:
            raise ValueError("codes of bf16 weights have more than eight bits, and no kernel")
        rows, columns = (int(n) for n in data[8:24].view(np.uint64))
        per_block = int(data[24:28].view(np.uint32)[0])
        self.rows, self.columns, self.padded = rows, columns, -(-columns // 64) * 64
        low_bits = int(data[48])
        low = np.frombuffer(parts.get("low_bits", b"") or b"\0", np.uint8)
        slots = _slots(np.frombuffer(parts["freq"], np.uint8).reshape(-1, 16))
        offsets = 4 * np.frombuffer(parts["stream_offsets"], np.uint32).astype(np.int64)
        blocks = [
            _block(data, int(start), int(end), at * per_block, min(per_block, rows - at * per_block))
            for at, (start, end) in enumerate(pairwise(offsets))
        ]
        self.arrays: dict[str, np.ndarray[Any, Any]] = {
            "params": np.array([self.padded, low_bits, rows, data.size, low.size, slots.size, columns], np.uint32),
            "blocks": np.array(blocks, np.uint32).reshape(-1),
            "data": data,
            "low": low,
            "slots": slots,
        }

    def decode(self) -> np.ndarray[Any, Any]:
        """All codes, by a device with Metal."""
        shape = (self.rows, self.columns)
        return self._run("ecq_decode", self.arrays, DECODE_INPUTS, DECODE_OUTPUTS, shape, "uint8")

    def _run(
        self,
        name: str,
        arrays: Mapping[str, np.ndarray[Any, Any]],
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        shape: tuple[int, ...],
        dtype: str,
    ) -> np.ndarray[Any, Any]:
        import mlx.core as mx

        if not mx.metal.is_available():
            raise RuntimeError("there is no Metal here")
        kernel: Any = mx.fast.metal_kernel(
            name=f"mithril_{name}", input_names=list(inputs), output_names=list(outputs), source=source(name)
        )
        n_blocks = self.arrays["blocks"].size // 8
        values, faults = kernel(
            inputs=[mx.array(arrays[name]) for name in inputs],
            grid=(32 * n_blocks, 1, 1),
            threadgroup=(32, 1, 1),
            output_shapes=[shape, (n_blocks,)],
            output_dtypes=[getattr(mx, dtype), mx.uint32],
        )
        if np.array(faults).any():
            raise CorruptError("a block's stream does not end where its symbols do")
        return np.array(values)


class Levels(Codes):
    """A matrix of levels, which are multiplied on the way."""

    def __init__(self, parts: Mapping[str, bytes]) -> None:
        """As for codes; only levels, as `mithril quantize` makes them, are taken."""
        super().__init__(parts)
        if self.arrays["data"][5] not in _LEVELS_LAYOUTS:
            raise ValueError("only levels, as `mithril quantize` makes them, have a kernel that multiplies")
        self.levels = np.frombuffer(parts["levels"], np.int8)

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
        arrays = {**self.arrays, "factors": self.factors(x)}
        return self._run("ecq_gemv", arrays, INPUTS, OUTPUTS, (self.rows,), "int32")


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
