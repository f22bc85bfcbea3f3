"""JAX checkpoints through Orbax, compressed.

```python
import orbax.checkpoint as ocp
from mithril.checkpoint.orbax import MithrilCheckpointHandler, MithrilRestore, MithrilSave

checkpointer = ocp.Checkpointer(MithrilCheckpointHandler(compression_level=3))
checkpointer.save(path, args=MithrilSave(tree))
tree = checkpointer.restore(path, args=MithrilRestore(tree))
```

`MithrilSave` and `MithrilRestore` also work in `CheckpointManager` and `AsyncCheckpointer`. For Orbax's interface of
version 1 there is `MithrilCheckpointableHandler`.
"""

from mithril.checkpoint.orbax._handler import MithrilCheckpointHandler, MithrilRestore, MithrilSave
from mithril.checkpoint.orbax._v1 import MithrilCheckpointableHandler

__all__ = [
    "MithrilCheckpointHandler",
    "MithrilCheckpointableHandler",
    "MithrilRestore",
    "MithrilSave",
]
