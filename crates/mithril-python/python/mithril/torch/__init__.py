"""Modules of PyTorch whose weights stay compressed in memory.

    from mithril.torch import compress_module

    compress_module(model, kind="entropy")   # every Linear and Embedding of bf16 weights, in place

Nothing is lost: with `arithmetic="torch"`, the default, a layer decodes its weights into one buffer that all layers share
and lets torch multiply, so outputs are those of the plain model, bit for bit. With `arithmetic="fused"` single vectors are
multiplied straight from the codes, in singles; only the order of the additions differs from torch's.

A model that came quantised, from a GGUF file say, keeps the codes that `mithril convert --to ecq` made of it:

    compress_module(model, kind="ecq", source="model-ecq/model.safetensors", names=name_in_the_file)
"""

from mithril.torch._compress import compress_module, load_module, resident_bytes, save_module
from mithril.torch._modules import EntropyCodedEmbedding, EntropyCodedLinear
from mithril.torch._report import CodingReport, coding_report

__all__ = [
    "CodingReport",
    "EntropyCodedEmbedding",
    "EntropyCodedLinear",
    "coding_report",
    "compress_module",
    "load_module",
    "resident_bytes",
    "save_module",
]
