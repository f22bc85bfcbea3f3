"""Quantised layers whose weights stay coded in memory."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mithril._mithril import CodedFile


class CodedWeight:
    """The packed weights of a layer, as the coded file has them: decoded when they are asked for."""

    def __init__(self, file: CodedFile, name: str, shape: tuple[int, ...]) -> None:
        """The tensor of this name in a file that stays open."""
        self.file, self.name, self.shape = file, name, shape

    def decode(self) -> mx.array:
        """The weights in the packed layout of MLX."""
        (data,) = self.file.read_originals([self.name])
        return mx.array(np.frombuffer(data, np.uint32).reshape(self.shape))


class _Coded(nn.Module):  # type: ignore[misc]  # mlx is not read for types
    """What both layers have: all of a quantised layer but its weights."""

    def __init__(self, layer: nn.Module, weight: CodedWeight) -> None:
        super().__init__()
        self.group_size, self.bits, self.mode = layer.group_size, layer.bits, layer.mode
        for name in ("scales", "biases", "bias"):
            if layer.get(name) is not None:
                setattr(self, name, layer[name])
        # In a list, so that MLX does not take it for a parameter.
        self._weight = [weight]
        self.freeze()

    def _how(self) -> dict[str, Any]:
        return {"group_size": self.group_size, "bits": self.bits, "mode": self.mode}

    def _product(self, x: mx.array) -> mx.array:
        weight = self._weight[0].decode()
        return mx.quantized_matmul(x, weight, scales=self["scales"], biases=self.get("biases"), transpose=True, **self._how())


class EntropyCodedLinear(_Coded):
    """`nn.QuantizedLinear` that decodes its weights at every call."""

    def __call__(self, x: mx.array) -> mx.array:
        """`x W^T + b`."""
        x = self._product(x)
        return x + self["bias"] if "bias" in self else x


class EntropyCodedEmbedding(_Coded):
    """`nn.QuantizedEmbedding` that decodes its weights at every call."""

    def __call__(self, numbers: mx.array) -> mx.array:
        """The rows of these numbers."""
        biases = self.get("biases")
        return mx.dequantize(
            self._weight[0].decode()[numbers],
            scales=self["scales"][numbers],
            biases=None if biases is None else biases[numbers],
            **self._how(),
        )

    def as_linear(self, x: mx.array) -> mx.array:
        """The product with the rows, for models whose output shares its weights."""
        return self._product(x)
