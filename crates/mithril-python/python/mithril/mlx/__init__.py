"""Entropy-coded models in MLX and mlx-lm.

    mithril convert model-4bit --to ecq -o model-4bit-ecq      # once, on the command line, or `mithril.mlx.convert`

    from mithril.mlx import load
    model, tokenizer = load("model-4bit-ecq")                  # as `mlx_lm.load`, with the same weights bit for bit

or `mithril.mlx.enable()`, after which `mlx_lm.load` and `mlx_lm.generate` take such models. A model without `enable` is
refused by mlx-lm, as its weights have other names.

By default weights are decoded when they are loaded: files and downloads are smaller, memory and speed are as before. With
`keep_coded=True` quantised layers keep their weights coded and decode them at every call: less memory, slower.
"""

from mithril.mlx._layers import EntropyCodedEmbedding, EntropyCodedLinear
from mithril.mlx._models import convert, disable, enable, load, load_model, load_weights

__all__ = [
    "EntropyCodedEmbedding",
    "EntropyCodedLinear",
    "convert",
    "disable",
    "enable",
    "load",
    "load_model",
    "load_weights",
]
