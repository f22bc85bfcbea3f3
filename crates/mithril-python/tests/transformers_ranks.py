"""Two ranks that train the same model on different data, stop, and resume: run by `test_transformers.py`.

RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=PORT python transformers_ranks.py DIRECTORY
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from leaving import leave
from test_transformers import fitted, losses
from transformers import Trainer

from mithril.checkpoint.transformers import latest


def parameters(finished: Any) -> list[torch.Tensor]:
    return list(finished.model.parameters())


def main(directory: Path) -> None:
    options = {"ddp_backend": "gloo", "max_steps": 4, "save_steps": 2}
    whole = fitted(directory / "whole", kind=Trainer, **options)
    run = directory / "run"
    fitted(run, stop=2, **options)
    torch.distributed.barrier()
    assert latest(run) == str(run / "checkpoint-2")
    names = {path.name for path in (run / "checkpoint-2").iterdir()}
    assert {"mithril.json", "rng_state_0.pth", "rng_state_1.pth"} <= names, names
    assert "optimizer.pt" not in names and "model.safetensors" not in names
    resumed = fitted(run, resume=True, **options)
    assert losses(resumed) == losses(whole)
    assert all(torch.equal(one, other) for one, other in zip(parameters(resumed), parameters(whole), strict=True))
    print(f"rank {torch.distributed.get_rank()} agrees over {len(parameters(whole))} tensors")
    leave()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
