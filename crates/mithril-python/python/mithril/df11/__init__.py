"""DFloat11: BF16 models in about 11 bits a weight, made, checked, restored and run on any machine, without a GPU.

`compress_model` writes what the package `dfloat11` would write, byte for byte, and that package loads it. `decompress_model`
gives the plain files back; `load_state_dict` the tensors. `DFloat11Model.from_pretrained` runs a model whose Linear and
Embedding weights stay compressed in memory: each is decoded when its layer runs, into one buffer that all share, and outputs
are those of the plain model, bit for bit.

Paths may be relative to the directory that the environment variable `MITHRIL_DF11_ROOT` names.
"""

from mithril.df11._convert import Summary, compress_model, decompress_model
from mithril.df11._files import load_state_dict
from mithril.df11._model import DFloat11Model

__all__ = ["DFloat11Model", "Summary", "compress_model", "decompress_model", "load_state_dict"]
