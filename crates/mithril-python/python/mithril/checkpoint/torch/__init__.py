"""PyTorch's distributed checkpoints (DCP), compressed.

The main way is a storage writer and a storage reader:

```python
import torch.distributed.checkpoint as dcp
from mithril.checkpoint.torch import MithrilStorageReader, MithrilStorageWriter

dcp.save(state_dict, storage_writer=MithrilStorageWriter("run/step_1000"))
dcp.save(state_dict, storage_writer=MithrilStorageWriter("run/step_1100", base="run/step_1000"))
dcp.load(state_dict, storage_reader=MithrilStorageReader("run/step_1100"))
```

`save`, `load` and `async_save` are the same with less to write. Who must keep torch's own writer uses the planners, or
the extension of its streams. `clean` removes what killed saves have left.

Torch 2.5 or newer will do; extensions are there from 2.7 on.
"""

from mithril.checkpoint.torch._clean import clean
from mithril.checkpoint.torch._extension import MithrilExtension
from mithril.checkpoint.torch._functions import async_save, load, save
from mithril.checkpoint.torch._latest import latest
from mithril.checkpoint.torch._planner import MithrilLoadPlanner, MithrilSavePlanner
from mithril.checkpoint.torch._reader import MithrilStorageReader
from mithril.checkpoint.torch._writer import MithrilStorageWriter

__all__ = [
    "MithrilExtension",
    "MithrilLoadPlanner",
    "MithrilSavePlanner",
    "MithrilStorageReader",
    "MithrilStorageWriter",
    "async_save",
    "clean",
    "latest",
    "load",
    "save",
]
