"""A linear layer and an embedding over a coded matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import nn

from mithril._adapters import torch as adapter
from mithril._mithril import CodedMatrix, MithrilError, QuantisedMatrix

Kind = Literal["fixed12", "entropy", "ecq"]
Arithmetic = Literal["torch", "fused"]

# The tensors of a matrix, as coded files name them; the first is always there.
PARTS = (
    "compressed",
    "stream_offsets",
    "freq",
    "low_bits",
    "levels",
    "scales",
    "column_scales",
    "biases",
    "zero_codes",
    "bias_residuals",
    "sub_scales",
    "sub_biases",
)

Matrix = CodedMatrix | QuantisedMatrix

# Vectors that weights that came quantised are multiplied with from their codes.
FUSED_VECTORS = 8


class _Room:
    """Memory that layers decode into, one after the other."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def take(self, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor that stays as it is until the next one is taken."""
        size = shape[0] * shape[1] * dtype.itemsize
        if self._memory.numel() < size:
            self._memory = torch.empty(size, dtype=torch.uint8)
        return self._memory[:size].view(dtype).view(shape)


_ROOM = _Room()


class _Coded(nn.Module):  # type: ignore[misc]  # torch is not read for types
    """What both kinds of modules have: the matrix, and how it goes into a state and comes out of it."""

    def __init__(self, matrix: Matrix, dtype: torch.dtype, threads: int) -> None:
        super().__init__()
        self.matrix = matrix
        self.dtype = dtype
        self.threads = threads

    def extra_repr(self) -> str:
        """Shape, kind and size."""
        bits = 8 * self.matrix.resident_bytes / max(1, self.matrix.rows * self.matrix.columns)
        return f"{self.matrix.columns} -> {self.matrix.rows}, kind={self.matrix.kind}, {bits:.2f} bits per weight"

    def decode(self, *, fresh: bool = False) -> torch.Tensor:
        """The weights. Unless `fresh`, they stand in memory that the next layer uses too."""
        shape = (self.matrix.rows, self.matrix.columns)
        is_bf16 = self.matrix.kind in ("fixed12", "entropy")
        stored = torch.bfloat16 if is_bf16 else torch.float32
        weights = torch.empty(shape, dtype=stored) if fresh else _ROOM.take(shape, stored)
        if isinstance(self.matrix, CodedMatrix) and is_bf16:
            self.matrix.decode_bf16(adapter.memory(weights), self.threads)
        else:
            decode_rows(self.matrix, 0, shape[0], weights, self.threads)
        return weights.to(self.dtype)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, dtype, shape, data in self.matrix.parts():
            destination[prefix + name] = torch.frombuffer(bytearray(data), dtype=adapter.dtype_of(dtype)).reshape(shape)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        own = {name: state_dict[prefix + name] for name in PARTS if prefix + name in state_dict}
        rest = {key: value for key, value in state_dict.items() if key not in {prefix + name for name in own}}
        super()._load_from_state_dict(rest, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        if PARTS[0] not in own:
            missing_keys.append(prefix + PARTS[0])
            return
        try:
            matrix = matrix_of(own)
        except MithrilError as error:
            error_msgs.append(f"{prefix}: {error}")
            return
        if (matrix.rows, matrix.columns) != (self.matrix.rows, self.matrix.columns):
            error_msgs.append(
                f"{prefix}: {matrix.rows} x {matrix.columns} weights for a module of {self.matrix.rows} x {self.matrix.columns}"
            )
            return
        self.matrix = matrix


class EntropyCodedLinear(_Coded):
    """`nn.Linear` whose weights stay coded. They take no gradients; inputs do."""

    def __init__(
        self,
        matrix: Matrix,
        bias: torch.Tensor | None = None,
        *,
        dtype: torch.dtype = torch.bfloat16,
        arithmetic: Arithmetic = "torch",
        threads: int = 0,
    ) -> None:
        """A layer over a coded matrix. `dtype` is what torch multiplies in."""
        super().__init__(matrix, dtype, threads)
        if arithmetic not in ("torch", "fused"):
            raise ValueError(f"`arithmetic` is `torch` or `fused`, not `{arithmetic}`")
        self.arithmetic = arithmetic
        self.in_features, self.out_features = matrix.columns, matrix.rows
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, kind: Kind = "entropy", *, arithmetic: Arithmetic = "torch", threads: int = 0
    ) -> EntropyCodedLinear:
        """Codes the weights of a layer, which must be bf16, or hold nothing but bf16 values."""
        matrix = matrix_of_weight(linear.weight, kind)
        return cls(matrix, linear.bias, dtype=linear.weight.dtype, arithmetic=arithmetic, threads=threads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x W^T + b`."""
        needs_gradient = torch.is_grad_enabled() and x.requires_grad
        if self.arithmetic == "fused" and 0 < x.numel() <= self._fused_vectors * self.in_features and not needs_gradient:
            return self._fused(x)
        return nn.functional.linear(x, self.decode(fresh=needs_gradient), self.bias)

    @property
    def _fused_vectors(self) -> int:
        """Vectors that are multiplied from codes; for more of them torch is quicker, decoding included."""
        return FUSED_VECTORS if isinstance(self.matrix, QuantisedMatrix) else 1

    def _fused(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type != "cpu":
            raise ValueError(f"coded weights are multiplied on the CPU; the input is on {x.device}")
        out = torch.empty((*x.shape[:-1], self.out_features), dtype=torch.float32)
        x_single = x.detach().to(torch.float32).contiguous()
        self.matrix.multiply(adapter.memory(x_single), adapter.memory(out), self.threads)
        if self.bias is not None:
            out += self.bias.to(torch.float32)
        return out.to(x.dtype)


class EntropyCodedEmbedding(_Coded):
    """`nn.Embedding` whose rows stay coded: a look-up decodes the blocks that hold its rows."""

    def __init__(
        self,
        matrix: Matrix,
        *,
        dtype: torch.dtype = torch.bfloat16,
        padding_idx: int | None = None,
        threads: int = 0,
    ) -> None:
        """An embedding over a coded matrix."""
        super().__init__(matrix, dtype, threads)
        self.num_embeddings, self.embedding_dim = matrix.rows, matrix.columns
        self.padding_idx = padding_idx

    @classmethod
    def from_embedding(cls, embedding: nn.Embedding, kind: Kind = "entropy", *, threads: int = 0) -> EntropyCodedEmbedding:
        """Codes the rows of an embedding, which must be bf16, or hold nothing but bf16 values."""
        matrix = matrix_of_weight(embedding.weight, kind)
        return cls(matrix, dtype=embedding.weight.dtype, padding_idx=embedding.padding_idx, threads=threads)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """The rows of these numbers."""
        unique, places = torch.unique(numbers, return_inverse=True)
        rows = torch.empty((unique.numel(), self.embedding_dim), dtype=torch.float32)
        for at, number in enumerate(unique.tolist()):
            if not 0 <= number < self.num_embeddings:
                raise IndexError(f"no row {number}: there are {self.num_embeddings}")
            decode_rows(self.matrix, number, number + 1, rows[at], 1)
        return rows.to(self.dtype)[places]


def decode_rows(matrix: Matrix, start: int, end: int, out: torch.Tensor, threads: int) -> None:
    """Some rows, as singles."""
    if isinstance(matrix, QuantisedMatrix):
        matrix.decode_rows(start, end, adapter.memory(out), threads)
    else:
        matrix.decode_rows(start, end, adapter.memory(out))


def matrix_of_weight(weight: torch.Tensor, kind: Kind) -> CodedMatrix:
    """The coded matrix of a weight; a weight that is not bf16 to the last bit is refused."""
    narrow = weight.detach().to("cpu", torch.bfloat16).contiguous()
    if weight.dtype != torch.bfloat16 and not _same(narrow.to(weight.dtype), weight.detach().cpu()):
        raise ValueError(f"weights of {weight.dtype} would be rounded: only bf16 values are coded without loss")
    rows, columns = narrow.shape
    return CodedMatrix.from_bf16(adapter.memory(narrow), rows, columns, kind)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)))


def matrix_of(parts: Mapping[str, torch.Tensor]) -> Matrix:
    """The matrix of its tensors."""
    memory = {name: adapter.memory(part.cpu().contiguous()) for name, part in parts.items()}
    # Levels are what `mithril quantize` and bf16 weights have; models that came quantised have scales alone.
    is_own = "levels" in memory or "scales" not in memory
    return CodedMatrix(memory) if is_own else QuantisedMatrix(memory)


def is_matrix_of(matrix: Matrix, weight: torch.Tensor) -> bool:
    """Whether a matrix decodes to these very weights."""
    if (matrix.rows, matrix.columns) != tuple(weight.shape):
        return False
    decoded = torch.empty(weight.shape, dtype=torch.float32)
    decode_rows(matrix, 0, matrix.rows, decoded, 0)
    return _same(decoded.to(weight.dtype), weight.detach().cpu())
