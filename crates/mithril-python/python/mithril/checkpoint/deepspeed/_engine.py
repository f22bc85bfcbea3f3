"""The engine that DeepSpeed saves and loads through."""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine

from mithril._mithril import CorruptError, MithrilError, NotFoundError, OutputFile
from mithril.checkpoint import _manifest, _parts
from mithril.checkpoint._chunks import Checkpoint
from mithril.checkpoint._manifest import Manifest
from mithril.checkpoint.deepspeed import _file, _kept


@dataclass(frozen=True)
class Options:
    """What `mithril_config` may say.

    Attributes:
        compression_level: level of zstd, 1 to 22, where data with repeats is handed to it.
        byte_grouping: whether numbers are split into their fields. Without, they are compressed as bytes.
        effort: "fast" (the default), "balanced" or "max": how much work may go into size.
        threads: of each rank; 0 is one per core.
        decoupled: whether ranks write in the background; DeepSpeed commits at the next step.
        delta_enabled: whether a checkpoint is stored as what changed since the last one that was stored whole, which it
            then needs as long as it is kept itself. A tag that is used again while others are stored against it leaves what
            they need in `TAG.base-GENERATION` beside them.
        max_since_whole: after so many of those the next is stored whole.
        trusted: whether objects that have no representation of their own are stored by pickle and run when they are
            loaded, as DeepSpeed does with all its files.
    """

    compression_level: int | None = 3
    byte_grouping: bool = True
    effort: str | None = None
    threads: int = 0
    decoupled: bool = False
    delta_enabled: bool = False
    max_since_whole: int = 8
    trusted: bool = True


class MithrilCheckpointEngine(CheckpointEngine):  # type: ignore[misc]
    """Writes every file of a checkpoint compressed, and a manifest when all ranks have written theirs.

    A file without a manifest belongs to a save that was not finished, and is refused. What is saved outside of a
    checkpoint's directory, as `save_16bit_model` does, is for others to read, and written plain.
    """

    def __init__(
        self, config_params: Any = None, *, options: Options | None = None, writes_manifest: bool | None = None
    ) -> None:
        super().__init__(config_params)
        self.name = "MithrilCheckpointEngine"
        self.options = options or Options()
        self._writes_manifest = _rank() == 0 if writes_manifest is None else writes_manifest
        self._info: Any = None
        self._written: dict[str, int] = {}
        self._failure: BaseException | None = None
        self._writes: list[Future[None]] = []
        self._thread: ThreadPoolExecutor | None = None
        # The checkpoint that was saved or loaded last, and what the one at work is stored against.
        self._previous: Path | None = None
        self._base: Checkpoint | None = None
        self._n_since_whole = 0

    def create(self, info: Any) -> None:
        """Begins a checkpoint. One that is still being written is finished first."""
        self._settle()
        self._info = info
        self._written, self._failure, self._writes = {}, None, []
        self._base, self._n_since_whole = self._agreed_base()
        # Raised before all ranks are here, a failure would leave the others waiting; and nobody writes before they are.
        failures = [text for text in _gathered(self._made_room()) if text is not None]
        if failures:
            raise MithrilError(f"checkpoint `{info.tag}` is not begun: {failures[0]}")

    def save(self, state_dict: Any, path: str) -> None:
        """Writes a file, or with `decoupled` copies what it will hold. A failure is told by `commit`, on all ranks."""
        place = Path(path)
        try:
            if place.parent != self._directory:
                _save_plain(state_dict, place)
                return
            decoupled = self.options.decoupled
            tensors = _file.encode(
                state_dict, trusted=self.options.trusted, byte_grouping=self.options.byte_grouping, copied=decoupled
            )
            if decoupled:
                if self._thread is None:
                    self._thread = ThreadPoolExecutor(1, thread_name_prefix="mithril")
                self._writes.append(self._thread.submit(self._write, place, tensors))
            else:
                self._write(place, tensors)
        except Exception as error:
            # Raised here it would leave the other ranks waiting for this one.
            self._failure = self._failure or error

    def commit(self, info: Any) -> bool:
        """Finishes a checkpoint, once all ranks have written what they save."""
        for write in self._writes:
            error = write.exception()
            self._failure = self._failure or error
        failure, self._info = self._failure, None
        told = (self._written, None if failure is None else f"{type(failure).__name__}: {failure}")
        reports = _gathered(told)
        failed = [f"rank {rank}: {text}" for rank, (_, text) in enumerate(reports) if text is not None]
        if failed:
            raise MithrilError(f"checkpoint `{info.tag}` is not saved: {'; '.join(failed)}") from failure
        directory = _directory_of(info)
        files = {name: size for written, _ in reports for name, size in written.items()}
        if self._writes_manifest and files:
            base = self._base
            manifest = Manifest(
                tensors={},
                planner_data="null",
                files=files,
                base=None if base is None else os.path.relpath(base.directory, directory),
                base_generation=None if base is None else base.manifest.generation,
                n_since_whole=self._n_since_whole,
            )
            _manifest.write(directory, manifest, replace=True)
        _barrier()
        if files:
            self._previous = directory
        return True

    def load(self, path: str, map_location: Any = None) -> Any:
        """The state of a file, which may also be one that torch saved."""
        place = Path(path)
        if not place.exists():
            _check_missing(place)
        if not _file.is_ours(place):
            return torch.load(place, map_location=map_location, weights_only=False)
        state = load_file(place, map_location=map_location, threads=self.options.threads, trusted=self.options.trusted)
        self._previous = place.parent
        return state

    def is_decoupled(self) -> bool:
        """Whether DeepSpeed is to commit at the next step."""
        return self.options.decoupled

    def get_commit_info(self) -> Any:
        """The checkpoint that is to be committed."""
        return self._info if self.options.decoupled else None

    def preserves_storage_sharing(self) -> bool:
        """No: so DeepSpeed need not copy tensors that are parts of larger ones, before they are saved."""
        return False

    def cleanup(self) -> None:
        """Finishes what is being written; DeepSpeed calls it at the end of training."""
        self._settle()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    @property
    def _directory(self) -> Path:
        return _directory_of(self._info)

    def _made_room(self) -> str | None:
        """Makes the directory ready for files of another save. Returns why that failed, if so."""
        if not self._writes_manifest:
            return None
        try:
            # Other tags may be stored against what this one holds.
            _kept.keep(self._directory)
            # From here on the directory holds files of two saves, until this one is finished.
            (self._directory / _manifest.NAME).unlink(missing_ok=True)
            for leftover in self._directory.glob(".*.tmp"):
                # Of a save that was killed.
                leftover.unlink(missing_ok=True)
        except (MithrilError, OSError) as error:
            return f"{type(error).__name__}: {error}"
        return None

    def _agreed_base(self) -> tuple[Checkpoint | None, int]:
        """What this save is stored against, if all ranks see the same, and how many saves ago it was."""
        if not self.options.delta_enabled:
            return None, 0
        base, n_since_whole = None, 0
        if self._previous is not None:
            # One that is damaged or gone is none: this checkpoint is stored whole.
            with contextlib.suppress(MithrilError):
                base, n_since_whole = _parts.open_base(self._previous, self.options.max_since_whole, self.options.threads)
        if base is not None and base.directory.resolve() == self._directory.resolve():
            base = None
        seen = set(_gathered(None if base is None else base.manifest.generation))
        return (base, n_since_whole) if len(seen) == 1 and base is not None else (None, 0)

    def _write(self, path: Path, tensors: _file.StoredTensors) -> None:
        bases = [] if self._base is None else [self._base.directory / path.name]
        bases = [base for base in bases if base.is_file() and _file.is_ours(base)]
        coding = (self.options.compression_level, self.options.threads, self.options.effort, None)
        _file.write(path, tensors, coding, bases)
        self._written[path.name] = path.stat().st_size

    def _settle(self) -> None:
        """Commits what DeepSpeed has not committed yet, with the file `latest` as DeepSpeed would."""
        info = self.get_commit_info()
        if info is None:
            return
        self.commit(info)
        if info.save_latest and _rank() == 0:
            with OutputFile(Path(info.save_dir) / "latest", True) as file:
                file.write(str(info.tag).encode())
        _barrier()


def load_file(path: Path, *, map_location: Any = None, threads: int = 0, trusted: bool = True) -> Any:
    """The state of a compressed file, which must be part of a finished checkpoint."""
    directory = path.parent
    manifest = _manifest.read(directory)
    expected = manifest.files.get(path.name)
    if expected is None:
        raise NotFoundError(f"`{path}` is not part of the checkpoint in its directory")
    if expected != path.stat().st_size:
        raise CorruptError(f"`{path}` has {path.stat().st_size} bytes, and was saved with {expected}")
    base = Checkpoint(directory, manifest, threads).base()
    bases = [] if base is None else [base.directory / path.name]
    return _file.read(path, [b for b in bases if b.is_file()], map_location=map_location, threads=threads, trusted=trusted)


def _check_missing(path: Path) -> None:
    """Says so if a file that is not there belongs to a checkpoint; others are for torch to miss."""
    directory = path.parent
    if (directory / _manifest.NAME).is_file() and path.name in _manifest.read(directory).files:
        raise NotFoundError(f"`{directory}` is not whole: `{path.name}` is missing, which it was saved with")


def _directory_of(info: Any) -> Path:
    return Path(info.save_dir) / str(info.tag)


def _save_plain(state: Any, path: Path) -> None:
    with OutputFile(path, True) as file:
        torch.save(state, file)


def _is_distributed() -> bool:
    return bool(dist.is_available() and dist.is_initialized())


def _rank() -> int:
    return int(dist.get_rank()) if _is_distributed() else 0


def _barrier() -> None:
    if _is_distributed():
        dist.barrier()


def _gathered(told: Any) -> list[Any]:
    """What every rank tells, by rank."""
    if not _is_distributed():
        return [told]
    everything: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everything, told)
    return everything
