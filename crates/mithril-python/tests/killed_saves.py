"""A run that resumes, trains and saves, and is killed at one point of a save: run by the tests of each framework.

python killed_saves.py FRAMEWORK PLACE STEP     killed in the save of a step; 0 for a run that comes to its end
"""

import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

N_STEPS = 6


def kill_in(module: Any, function: str, is_it: Callable[..., bool]) -> None:
    """Kills this process where a function would be called with certain arguments."""
    original = getattr(module, function)

    def replacement(*arguments: Any) -> Any:
        if is_it(*arguments):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)

    setattr(module, function, replacement)


def dcp(root: str, killed_at: int, background: bool) -> None:
    """Killed when a checkpoint is finished, and before `latest` names it."""
    from test_torch_stores import blank, check, state

    import mithril
    from mithril.checkpoint import torch as ours
    from mithril.checkpoint.torch import _latest

    kill_in(_latest, "move", lambda place, *_: place.name == f"step_{killed_at}")
    first, base = 0, None
    try:
        base = ours.latest(root)
    except mithril.NotFoundError:
        pass
    else:
        loaded = blank()
        ours.load(loaded, checkpoint_id=base, no_dist=True)
        check(loaded, loaded["epoch"])
        first = loaded["epoch"] + 1
    print("resumes at", first)
    for step in range(first, N_STEPS):
        path = f"{root}/step_{step}"
        if background:
            ours.async_save(state(step), checkpoint_id=path, step=step, base=base, no_dist=True).result()
        else:
            ours.save(state(step), checkpoint_id=path, step=step, base=base, no_dist=True)
        base = path


def trainer(root: str, killed_at: int) -> None:
    """Killed when the tensors are in the store, and before the file names them."""
    from test_transformers import fitted, losses

    from mithril.checkpoint import _pointers
    from mithril.checkpoint.transformers import latest

    kill_in(_pointers, "_replace", lambda path, _: path.parent.name == f"checkpoint-{killed_at}")
    found = latest(root)
    print("resumes at", 0 if found is None else found.rpartition("-")[2])
    finished = fitted(Path(root), resume=None if found is None else True, max_steps=N_STEPS, save_steps=2)
    print("losses", losses(finished))


def lightning(root: str, killed_at: int) -> None:
    """Killed when the tensors are in the store, and before the file names them."""
    from test_lightning import fitted

    from mithril.checkpoint import _pointers

    kill_in(_pointers, "_replace", lambda path, _: path.name == "last.ckpt" and _saved_step(root) == killed_at)
    found = (Path(root) / "last.ckpt").is_file()
    model = fitted(Path(root), N_STEPS, resume="last" if found else None)
    print("losses", model.losses)


def _saved_step(root: str) -> int:
    from mithril.checkpoint import Compressor

    newest = Compressor(Path(root) / "mithril-store").latest()
    assert newest is not None and newest.step is not None
    return newest.step


def main(framework: str, root: str, killed_at: str) -> None:
    warnings.simplefilter("ignore")
    step = int(killed_at) or N_STEPS + 1
    if framework in ("dcp", "dcp-background"):
        dcp(root, step, framework == "dcp-background")
    else:
        {"trainer": trainer, "lightning": lightning}[framework](root, step)


if __name__ == "__main__":
    main(*sys.argv[1:])
