"""DeepSpeed's checkpoints, compressed.

DeepSpeed has no place where others can register, and passes over what it does not know in its configuration. So one call
more is needed: `initialize` instead of DeepSpeed's own, or `install` after it.

```python
config = {..., "checkpoint": {"use_mithril": True, "mithril_config": {"compression_level": 3, "byte_grouping": True}}}
engine, *_ = mithril.checkpoint.deepspeed.initialize(model=model, config=config)
engine.save_checkpoint("run")
```

Files keep their names, and DeepSpeed loads them through the same engine, as it does plain files of earlier runs. Its tools
(`zero_to_fp32.py`, `ds_to_universal`) read files themselves: `mithril deepspeed unpack run/global_step10` makes them plain,
and `readable_by_torch` lets functions of DeepSpeed read them as they are.
"""

from mithril.checkpoint.deepspeed._engine import MithrilCheckpointEngine, Options
from mithril.checkpoint.deepspeed._install import initialize, install
from mithril.checkpoint.deepspeed._readable import readable_by_torch
from mithril.checkpoint.deepspeed._unpack import unpack

__all__ = ["MithrilCheckpointEngine", "Options", "initialize", "install", "readable_by_torch", "unpack"]
