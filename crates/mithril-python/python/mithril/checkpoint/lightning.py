"""Lightning's checkpoints, compressed: a `CheckpointIO` for its `Trainer`.

```python
from mithril.checkpoint.lightning import MithrilCheckpointIO

trainer = Trainer(plugins=[MithrilCheckpointIO()])
trainer.fit(model, ckpt_path="last")
```

The `.ckpt` files that Lightning names, keeps and removes hold only the name of a checkpoint; the tensors are in a store
beside them (`mithril-store`), each checkpoint as what changed since the one before. Plain files of earlier runs load too.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mithril.checkpoint._pointers import Pointers

if TYPE_CHECKING:
    from lightning_fabric.plugins import CheckpointIO, TorchCheckpointIO

# The two names under which Lightning is installed; each has classes of its own.
_PACKAGES = {"lightning": "lightning.fabric.plugins", "pytorch_lightning": "lightning_fabric.plugins"}

PathLike = str | os.PathLike[str]


def _plugins() -> Any:
    """The module with Lightning's plug-ins: of the package that is in use, or else installed."""
    for package in sorted(_PACKAGES, key=lambda name: name not in sys.modules):
        if find_spec(package) is not None:
            return import_module(_PACKAGES[package])
    raise ModuleNotFoundError(
        "mithril.checkpoint.lightning needs Lightning: `pip install lightning` or `pip install pytorch-lightning`",
        name="lightning",
    )


if not TYPE_CHECKING:
    CheckpointIO, TorchCheckpointIO = _plugins().CheckpointIO, _plugins().TorchCheckpointIO


class MithrilCheckpointIO(CheckpointIO):  # type: ignore[misc]
    """Saves through `mithril.checkpoint.Compressor`: `Trainer(plugins=[MithrilCheckpointIO()])`.

    Args:
        storage: where the tensors go, such as `s3://bucket/run7`; by default to `mithril-store` beside the files.
        options: those of `Compressor`: `effort`, `threads`, `max_chain_depth`, `trusted` and so on. What is kept is for
            Lightning to say (`ModelCheckpoint(save_top_k=...)`).

    Nothing is pickled. A checkpoint with objects that have no representation, such as hyperparameters of classes of your
    own, is refused and their path named, unless `trusted=True`.
    """

    def __init__(self, storage: PathLike | None = None, **options: Any) -> None:
        self._pointers = Pointers(storage, options)
        for package, module in _PACKAGES.items():
            # Both may be in use in one process.
            if sys.modules.get(package) is not None:
                import_module(module).CheckpointIO.register(MithrilCheckpointIO)

    def save_checkpoint(self, checkpoint: dict[str, Any], path: PathLike, storage_options: Any = None) -> None:
        """Saves the state, and then the file at `path`."""
        if storage_options is not None:
            raise TypeError("`storage_options` are not used: give MithrilCheckpointIO its options")
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        self._pointers.save(path, checkpoint, step=checkpoint.get("global_step"))

    def load_checkpoint(self, path: PathLike, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """The state, in memory of the CPU unless `map_location` says otherwise. Files that torch wrote load too."""
        if not self._pointers.is_one(path):
            plain: dict[str, Any] = TorchCheckpointIO().load_checkpoint(
                path, map_location="cpu" if map_location is None else map_location, weights_only=weights_only
            )
            return plain
        where = "cpu" if map_location is None else map_location
        state: dict[str, Any] = self._pointers.load(path, map_location=where, trusted=False if weights_only else None)
        return state

    def remove_checkpoint(self, path: PathLike) -> None:
        """Removes the file, and the data that no other checkpoint needs."""
        if self._pointers.is_one(path):
            self._pointers.remove(path)
        else:
            TorchCheckpointIO().remove_checkpoint(path)


def unpack(path: PathLike, output: PathLike, *, trusted: bool = False) -> None:
    """Writes a checkpoint as torch does, for `load_from_checkpoint` and everything else that reads files by itself."""
    TorchCheckpointIO().save_checkpoint(MithrilCheckpointIO(trusted=trusted).load_checkpoint(path), os.fspath(output))
