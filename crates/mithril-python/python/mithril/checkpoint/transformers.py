"""Checkpoints of Hugging Face's `Trainer`, compressed.

```python
from mithril.checkpoint.transformers import MithrilTrainer

trainer = MithrilTrainer(model=model, args=args, train_dataset=dataset)
trainer.train(resume_from_checkpoint=True)
```

Other trainers take the mixin: `class MyTrainer(MithrilTrainerMixin, SFTTrainer)`. A directory `checkpoint-500` has the small
files that the Trainer writes and one that names the rest; model, optimizer and scheduler are in a store beside the
directories (`mithril-store`), each checkpoint as what changed since the one before.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mithril._mithril import CorruptError, NotFoundError, OutputDirectory, UnsupportedError
from mithril.checkpoint import _pointers
from mithril.checkpoint._pointers import Pointers

try:
    from transformers import Trainer
except ImportError as error:
    raise ModuleNotFoundError(
        "mithril.checkpoint.transformers needs Hugging Face's Trainer: `pip install transformers[torch]`", name=error.name
    ) from error

import torch

if TYPE_CHECKING:
    from torch import nn

NAME = "mithril.json"
"""Name of the file that names the rest of a checkpoint."""

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
# What `save_pretrained` calls weights, whole or in shards.
_WEIGHTS = re.compile(r"(adapter_)?(pytorch_)?model(-\d+-of-\d+)?\.(safetensors|bin)(\.index\.json)?")

PathLike = str | os.PathLike[str]


def latest(output_dir: PathLike) -> str | None:
    """The newest checkpoint of a run that is whole, or None. Saves that were killed are passed over.

    Checkpoints that the Trainer wrote by itself count too, if they have its state.
    """
    for path in reversed(_checkpoints(Path(output_dir))):
        if (path / NAME).is_file():
            try:
                _check(path)
            except (CorruptError, NotFoundError):
                continue
            return str(path)
        if _has_plain_weights(path) and (path / "trainer_state.json").is_file():
            return str(path)
    return None


def unpack(checkpoint: PathLike, output: PathLike, *, trusted: bool = False) -> None:
    """Writes a checkpoint as the Trainer does by itself, for `from_pretrained` and everything else that reads files.

    The directory appears whole or not at all. `trusted` is what `compression` of the trainer said: whether pickles in the
    checkpoint are run.
    """
    from safetensors.torch import save_file

    source = Path(checkpoint)
    _check(source)
    if Path(output).exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(output))
    state = Pointers(None, {}).load(source / NAME, map_location="cpu", trusted=trusted)
    with OutputDirectory(output, source) as target:
        for path in source.iterdir():
            if path.is_dir():
                shutil.copytree(path, target / path.name)
            elif path.name != NAME:
                shutil.copy2(path, target / path.name)
        # Safetensors has no tensors that share memory.
        weights = {name: tensor.clone() for name, tensor in state["model"].items()}
        save_file(weights, target / "model.safetensors", {"format": "pt"})
        for name in ("optimizer", "scheduler"):
            if name in state:
                torch.save(state[name], target / f"{name}.pt")


class MithrilTrainerMixin:
    """Makes a trainer save and load through mithril. It stands before the trainer among the bases of a class.

    Args, beside those of the trainer:
        storage: where the tensors go, such as `s3://bucket/run7`; by default to `mithril-store` in the output directory.
        compression: options of `mithril.checkpoint.Compressor`: `effort`, `threads`, `max_chain_depth` and so on.

    `save_total_limit`, `load_best_model_at_end`, `save_only_model` and `resume_from_checkpoint` mean what they always do;
    `resume_from_checkpoint=True` takes the newest checkpoint that is whole. `save_model` writes plain files as before.
    FSDP and DeepSpeed have ways of their own: `mithril.checkpoint.torch` and `mithril.checkpoint.deepspeed`.
    """

    def __init__(
        self, *args: Any, storage: PathLike | None = None, compression: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self._pointers = Pointers(storage, compression or {})
        # The directory that a checkpoint is being written to.
        self._saving: str | None = None
        # What a checkpoint of a path held besides the model, until it is asked for: it is read once.
        self._loaded: tuple[str, dict[str, Any]] | None = None
        super().__init__(*args, **kwargs)
        of_others = {"FSDP": "is_fsdp_enabled", "DeepSpeed": "is_deepspeed_enabled"}
        for framework, attribute in of_others.items():
            if getattr(self, attribute, False):
                raise UnsupportedError(
                    f"{framework} saves in a way of its own, which this trainer would pass over: use "
                    f"mithril.checkpoint.{'torch' if framework == 'FSDP' else 'deepspeed'}"
                )

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As the trainer's, but `True` is the newest checkpoint that is whole."""
        if resume_from_checkpoint is True:
            output_dir = self.args.output_dir  # type: ignore[attr-defined]
            resume_from_checkpoint = latest(output_dir)
            if resume_from_checkpoint is None:
                raise NotFoundError(f"there is no checkpoint in `{output_dir}` that is whole")
        elif isinstance(resume_from_checkpoint, str) and (Path(resume_from_checkpoint) / NAME).is_file():
            _check(Path(resume_from_checkpoint))
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]
        finally:
            self._loaded = None

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Plain files when users ask; in a checkpoint everything but the weights."""
        if not _internal_call or output_dir is None or output_dir != self._saving:
            super().save_model(output_dir, _internal_call=_internal_call)  # type: ignore[misc]
        elif self.args.should_save:  # type: ignore[attr-defined]
            self._save(output_dir, state_dict={})  # type: ignore[attr-defined]
            for path in Path(output_dir).iterdir():
                if _WEIGHTS.fullmatch(path.name):
                    path.unlink()

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Nothing: they go with the model."""

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        args: Any = self.args  # type: ignore[attr-defined]
        run = Path(self._get_output_dir(trial=trial))  # type: ignore[attr-defined]
        path = run / f"checkpoint-{self.state.global_step}"  # type: ignore[attr-defined]
        # Nothing is removed before this checkpoint is safe.
        limit, args.save_total_limit = args.save_total_limit, None
        self._saving = str(path)
        try:
            super()._save_checkpoint(model, trial)  # type: ignore[misc]
        finally:
            args.save_total_limit = limit
            self._saving = None
        if args.parallel_mode.value == "distributed":
            # All processes write what belongs to them.
            torch.distributed.barrier()
        if args.should_save:
            self._commit(run, path)
            self._rotate(run, path)
        if args.parallel_mode.value == "distributed":
            torch.distributed.barrier()

    def _commit(self, run: Path, path: Path) -> None:
        state: dict[str, Any] = {"model": self.model.state_dict()}  # type: ignore[attr-defined]
        if not self.args.save_only_model:  # type: ignore[attr-defined]
            state["optimizer"] = self.optimizer.state_dict()  # type: ignore[attr-defined]
            state["scheduler"] = self.lr_scheduler.state_dict()  # type: ignore[attr-defined]
        step = self.state.global_step  # type: ignore[attr-defined]
        files = _pointers.secured(path, leave_out=NAME)
        self._pointers.save(path / NAME, state, root=run, label=path.name, step=step, files=files)

    def _rotate(self, run: Path, newest: Path) -> None:
        """Removes old checkpoints as the trainer would: the newest and the best one stay."""
        limit = self.args.save_total_limit  # type: ignore[attr-defined]
        if limit is None or limit <= 0:
            return
        best = self.state.best_model_checkpoint  # type: ignore[attr-defined]
        protected = {newest.resolve()} | (set() if best is None else {Path(best).resolve()})
        found = _checkpoints(run)
        old = [path for path in found if path.resolve() not in protected]
        for path in old[: max(0, len(found) - max(limit, len(protected)))]:
            pointer = self._pointers.read(path / NAME) if self._pointers.is_one(path / NAME) else None
            # First what makes it a checkpoint.
            (path / NAME).unlink(missing_ok=True)
            if pointer is not None:
                self._pointers.delete(path / NAME, pointer)
            shutil.rmtree(path)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if not (Path(resume_from_checkpoint) / NAME).is_file():
            super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]
            return
        state = self._pointers.load(Path(resume_from_checkpoint) / NAME, map_location="cpu")
        target = self.model if model is None else model  # type: ignore[attr-defined]
        result = target.load_state_dict(state.pop("model"), strict=False)
        self._issue_warnings_after_load(result)  # type: ignore[attr-defined]
        self._loaded = (resume_from_checkpoint, state)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None or not (Path(checkpoint) / NAME).is_file():
            super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
            return
        loaded, self._loaded = self._loaded, None
        state = loaded[1] if loaded and loaded[0] == checkpoint else self._pointers.load(Path(checkpoint) / NAME)
        if "optimizer" in state:
            self.optimizer.load_state_dict(state["optimizer"])  # type: ignore[attr-defined]
            self.lr_scheduler.load_state_dict(state["scheduler"])  # type: ignore[attr-defined]

    def _load_best_model(self) -> None:
        best = self.state.best_model_checkpoint  # type: ignore[attr-defined]
        if best is not None and (Path(best) / NAME).is_file():
            self._load_from_checkpoint(best)
            self._loaded = None
        else:
            super()._load_best_model()  # type: ignore[misc]


class MithrilTrainer(MithrilTrainerMixin, Trainer):  # type: ignore[misc]
    """`Trainer` that saves and loads through mithril. Takes `storage` and `compression` beside its arguments."""


def _checkpoints(run: Path) -> list[Path]:
    """All directories of checkpoints, by step."""
    found = [
        (match, path) for path in run.glob("checkpoint-*") if (match := _CHECKPOINT.fullmatch(path.name)) and path.is_dir()
    ]
    return [path for _, path in sorted(found, key=lambda entry: int(entry[0][1]))]


def _check(path: Path) -> None:
    _pointers.check_files(path, Pointers(None, {}).read(path / NAME).files)


def _has_plain_weights(path: Path) -> bool:
    return any(_WEIGHTS.fullmatch(file.name) for file in path.iterdir())


__all__ = ["MithrilTrainer", "MithrilTrainerMixin", "latest", "unpack"]
