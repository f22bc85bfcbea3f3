"""safetensors files, packed: the same calls as the package `safetensors`, on files that take less space.

Two ways to use it. `compress_file` and `decompress_file` pack whole files and restore them byte for byte. Everything else
mirrors the package: change `from safetensors import safe_open` to `from mithril.safetensors import safe_open`, and files of
both kinds open; `save_file` writes packed ones. Submodules `numpy`, `torch`, `flax` and `mlx` are there as in the package.

Plain files are read as the package reads them, by two rules more: a header that has one name twice is refused, and so is a
tensor of more than 64 dimensions. `compress_file` takes both, and gives them back byte for byte.

>>> import numpy as np, tempfile, os
>>> from mithril.safetensors import save_file, safe_open
>>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
>>> save_file({"embedding": np.zeros((512, 64), np.float32)}, path)
>>> with safe_open(path, framework="np") as file:
...     print(file.keys(), file.get_slice("embedding")[10:12].shape)
['embedding'] (2, 64)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mithril._mithril import MithrilError as SafetensorError
from mithril._submodules import submodules
from mithril.safetensors._files import compress_bytes, compress_file, decompress_bytes, decompress_file
from mithril.safetensors._open import Slice, safe_open
from mithril.safetensors._reader import Reader
from mithril.safetensors._save import load, load_file, save, save_file

if TYPE_CHECKING:
    from mithril.safetensors import flax as flax
    from mithril.safetensors import mlx as mlx
    from mithril.safetensors import numpy as numpy
    from mithril.safetensors import torch as torch

__all__ = [
    "Reader",
    "SafetensorError",
    "Slice",
    "compress_bytes",
    "compress_file",
    "decompress_bytes",
    "decompress_file",
    "load",
    "load_file",
    "safe_open",
    "save",
    "save_file",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = submodules(__name__, ("flax", "mlx", "numpy", "torch"), __all__)
