"""`Compressor`: saves and loads whole states of training runs."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mithril import _adapters, _mithril
from mithril._progress import callback
from mithril._types import Coding, Path, Progress, StoreConfig, StoredTensor
from mithril.checkpoint import _background, _state

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from mithril._mithril import CheckpointMeta

# The class below has a method of the name of the type.
List = list

# The word that means the newest checkpoint where a key is asked for, as in the command.
LATEST = "latest"


class Compressor:
    """A store of checkpoints.

    Args:
        storage: URL of the store, such as `local:///checkpoints/run7`, `s3://bucket/run7` or `memory://`; or a path.
        delta_enabled: whether a checkpoint may be stored as what changed since the previous one.
        byte_grouping: whether numbers are split into their fields. Without, they are compressed as bytes.
        compression_level: level of zstd, 1 to 22, where data with repeats is handed to it.
        effort: "fast" (the default), "balanced" or "max": how much work may go into size.
        threads: 0 is one per core.
        max_chain_depth: deltas of deltas: at most so many, then a tensor is stored in full.
        max_restore_cost: bytes that restoring a checkpoint may read, as a multiple of what its tensors take in full.
        keep_last, keep_every, keep: which checkpoints stay when others are removed after a save: as many as were saved last,
            those whose step is a multiple, those of these keys. What was just saved and the newest stay always; by default
            all do.
        from_moments: whether deltas of fp32 weights start where the moments of their optimiser (`exp_avg` and `exp_avg_sq`,
            `mu` and `nu`, `m` and `v` in the names) say that they went. Moments are named after their weights, or numbered
            as by `torch.optim`. Smaller; but weights are then not read without their moments.
        verify: how a save is checked before it is committed. "chain", the default, follows every tensor through all that it is
            stored against, by digests; "full" also reads back and decodes all that was written.
        trusted: whether values that have no representation of their own are stored by pickle, and such pickles are run when
            they are loaded. Never use it for checkpoints of others.
        exit_timeout: seconds that the end of the process waits for saves in the background. What takes longer is given up,
            and named on stderr.

    What a state may hold: dictionaries, lists, tuples, sets, texts, bytes, numbers, None, and arrays of numpy, torch, jax
    and mlx; all come back as what they were. Tensors of torch that share memory share it again. Anything else is refused,
    and its path named.

    The newest checkpoint is the one with the highest step, and of those the one that was saved last. A step is given, or
    named by the key:

    ========================================================== ==========================================
    `step_1000`, `checkpoint-500`, `iter=7`, `epoch_3`, `7`    a step
    `best`, `final`, `epoch=4-val_loss=0.20`, `step_7.pt`      none: newer than all that was saved before
    `latest`                                                   refused: it stands for the newest
    ========================================================== ==========================================

    A place where nothing was ever saved is no store: `list`, `keys` and `latest` find nothing there, as a run that starts
    expects, and all other calls but `save` raise `NotFoundError`.

    A compressor can be pickled, and used after a fork. Saves that were started in the background before stay with the
    process that started them.
    """

    def __init__(
        self,
        storage: Path,
        *,
        delta_enabled: bool = True,
        byte_grouping: bool = True,
        compression_level: int | None = 3,
        effort: str | None = None,
        threads: int = 0,
        max_chain_depth: int = 8,
        max_restore_cost: float = 1.5,
        keep_last: int | None = None,
        keep_every: int | None = None,
        keep: tuple[str, ...] = (),
        from_moments: bool = False,
        verify: Literal["chain", "full"] = "chain",
        trusted: bool = False,
        exit_timeout: float = _background.EXIT_TIMEOUT,
    ) -> None:
        if not exit_timeout >= 0:
            raise ValueError(f"exit_timeout is a number of seconds, not {exit_timeout}")
        self.storage = os.fspath(storage)
        self.trusted = trusted
        self.exit_timeout = exit_timeout
        self._config: StoreConfig = (
            delta_enabled,
            byte_grouping,
            compression_level,
            effort,
            threads,
            max_chain_depth,
            max_restore_cost,
            keep_last,
            keep_every,
            tuple(keep),
            from_moments,
            verify,
        )
        self._opened = (os.getpid(), _mithril.Store(self.storage, self._config))

    @property
    def coding(self) -> Coding:
        """Level, threads and effort, for what compresses single tensors as this store does."""
        _, _, level, effort, threads, *_ = self._config
        return level, threads, effort, None

    @property
    def byte_grouping(self) -> bool:
        """Whether numbers are split into their fields."""
        return self._config[1]

    def save(
        self,
        state_dict: Any,
        key: str,
        previous_key: str | None = None,
        *,
        step: int | None = None,
        progress: Progress = None,
    ) -> CheckpointMeta:
        """Save a state. When this returns, nothing can lose it.

        Args:
            state_dict: what is to be saved. Of a tensor that another thread changes meanwhile, each part is saved as it was at
                some moment in between.
            key: its name in the store.
            previous_key: the checkpoint to store it against.
            step: training step; without one, the one that the key names, as in `step_100`.
            progress: True for a bar, or a function of bytes that are done, all bytes and the key.

        Raises:
            ConflictError: the key exists already. Nothing has changed then.
            NotFoundError: there is no checkpoint `previous_key`.
            ValueError: a tensor changed meanwhile that another one is stored by.
            TypeError: the state holds something that cannot be stored; its path is named.
        """
        _background.warn_of_failures()
        encoded = _state.encode(state_dict, trusted=self.trusted)
        with callback(progress) as told:
            return self._store.save(encoded.tensors, (encoded.text, step, key, previous_key), told)

    def save_async(self, state_dict: Any, key: str, previous_key: str | None = None, *, step: int | None = None) -> SaveHandle:
        """Copy the tensors, and save in the background, after saves that were started before.

        Returns:
            A handle: `await` it, or call its `result()`. The state may be changed as soon as this returns.

        A process that ends, also by `sys.exit` or an exception, waits for its saves, at most `exit_timeout` seconds. One that
        is killed, or ends by `os._exit`, does not. A save that failed, and whose handle is gone, is a `RuntimeWarning` of the
        next save of any compressor, or a line on stderr when the process ends.
        """
        _background.warn_of_failures()
        encoded = _state.encode(state_dict, trusted=self.trusted)
        # bytes() of what was lent: training goes on and changes the tensors.
        copies = [(name, dtype, shape, bytes(data)) for name, dtype, shape, data in encoded.tensors]
        store = self._store
        handle = store.start_save(copies, (encoded.text, step, key, previous_key))
        held = SaveHandle(handle, id(store))
        _background.started(handle, held, id(store), self.exit_timeout)
        return held

    def load(self, key: str, map_location: Any = None) -> Any:
        """Load a state.

        Args:
            key: its name in the store, or `latest` for the newest.
            map_location: where tensors of torch go, as in `torch.load`; without it, to the device they were on.

        Raises:
            NotFoundError: there is no such checkpoint.
            CorruptError, BaseMismatchError: it, or what it is stored against, is damaged.
        """
        store, key = self._store, self._resolved(key)
        text, tensors = store.describe(key)
        if text is None:
            return self._load_arrays(key, tensors, "numpy")

        def load(buffers: list[tuple[str, Any]]) -> None:
            store.load_into(key, buffers)

        return _state.decode(text, tensors, load, map_location=map_location, trusted=self.trusted)

    async def load_async(self, key: str, map_location: Any = None) -> Any:
        """Load a state on another thread, while the event loop goes on."""
        return await asyncio.to_thread(self.load, key, map_location)

    def load_tensor(self, key: str, name: str, *, framework: str = "numpy") -> Any:
        """One tensor of a checkpoint by its path, such as `model.w`; nothing else is decoded. `latest` is the newest."""
        key = self._resolved(key)
        found = [tensor for tensor in self._store.describe(key)[1] if tensor[0] == name]
        if not found:
            raise _mithril.NotFoundError(f"checkpoint `{key}` has no tensor `{name}`")
        return self._load_arrays(key, found, framework)[name]

    def list(self) -> Listing:
        """All checkpoints, from the first step to the last."""
        return Listing(*self._store.listing())

    def keys(self) -> List[str]:
        """Keys of all checkpoints, sorted. Reads none of them, so that there may be some that cannot be read."""
        return self._store.keys()

    def meta(self, key: str) -> CheckpointMeta:
        """What is known of a checkpoint, or of the `latest`, without reading its data."""
        return self._store.meta(self._resolved(key))

    def latest(self) -> CheckpointMeta | None:
        """The newest checkpoint whose data is all there; None where nothing was saved. Reads the manifests of all."""
        return self._store.latest()

    def verify(self, key: str | None = None, *, deep: bool = False) -> Verified:
        """Check a checkpoint, or all of them: sums and chains, and if `deep` every tensor."""
        return Verified(*self._store.verify(key, deep))

    def gc(self, *, dry_run: bool = False, min_age: float = 3600.0) -> Collected:
        """Remove data that no checkpoint needs and that is older than `min_age` seconds."""
        return Collected(*self._store.gc(dry_run, min_age))

    def delete(self, key: str) -> None:
        """Delete a checkpoint, and the data that no other one needs."""
        self._store.delete(key)

    def rebase(self, key: str) -> CheckpointMeta:
        """Store a checkpoint anew without a delta of any other."""
        return self._store.rebase(key)

    def apply_retention(self) -> List[str]:
        """Delete the checkpoints that are not to be kept; returns their keys."""
        return self._store.apply_retention()

    def flush(self, timeout: float = 600.0) -> List[SaveHandle]:
        """Wait for saves in the background; those that are not done in time are given up."""
        store = self._store
        return [SaveHandle(handle, id(store)) for handle in store.flush(timeout)]

    def __reduce__(self) -> Any:
        return _rebuilt, (self.storage, self._config, self.trusted, self.exit_timeout)

    def __repr__(self) -> str:
        # Without what a URL may hold of secrets.
        return f"Compressor({self._store.location!r})"

    @property
    def _store(self) -> _mithril.Store:
        process, store = self._opened
        if process != os.getpid():
            # Threads of the parent are not here.
            store = _mithril.Store(self.storage, self._config)
            self._opened = (os.getpid(), store)
        return store

    def _resolved(self, key: str) -> str:
        """The key that is meant: itself, or that of the newest checkpoint."""
        if key != LATEST:
            return key
        newest = self._store.latest()
        if newest is None:
            raise _mithril.NotFoundError(f"there is no checkpoint in `{self._store.location}`")
        return newest.key

    def _load_arrays(self, key: str, tensors: List[StoredTensor], framework: str) -> dict[str, Any]:
        """Tensors by name, as arrays of a framework, all read at once."""
        adapter = _adapters.named(framework)
        made = {name: adapter.empty(dtype, tuple(shape), size) for name, dtype, shape, size in tensors}
        self._store.load_into(key, [(name, memory) for name, (_, memory) in made.items()])
        return {name: adapter.finish(array) for name, (array, _) in made.items()}


class SaveHandle:
    """A save in the background: `await` it, or call `result()`."""

    def __init__(self, handle: _mithril.SaveHandle, store: int) -> None:
        """Use `Compressor.save_async`."""
        self._handle = handle
        self._store = store
        self._process = os.getpid()

    @property
    def key(self) -> str:
        """Key of the checkpoint."""
        return self._handle.key

    def done(self) -> bool:
        """Whether it is safe, or has failed."""
        return self._handle.done()

    def result(self, timeout: float | None = None) -> CheckpointMeta:
        """Wait until it is safe, at most `timeout` seconds.

        Raises:
            TimeoutError: it is not done by then, and goes on.
            RuntimeError: it was started before a fork, by the process that this is a child of.
        """
        if self._process != os.getpid():
            raise RuntimeError(f"`{self._handle.key}` is being saved by process {self._process}, which this is a fork of")
        try:
            return self._handle.result(timeout)
        finally:
            _background.seen(self._store, self._handle.key)

    def abandon(self) -> bool:
        """Give it up, unless it is being committed already; returns whether it is given up."""
        is_given_up = self._handle.abandon()
        if is_given_up:
            _background.seen(self._store, self._handle.key)
        return is_given_up

    def __await__(self) -> Generator[Any, Any, CheckpointMeta]:
        return asyncio.to_thread(self.result).__await__()


class Listing(NamedTuple):
    """What a store holds."""

    checkpoints: list[CheckpointMeta]
    # Keys of those that cannot be read, and why.
    unreadable: list[tuple[str, str]]

    def keys(self) -> Iterator[str]:
        """Keys of the checkpoints."""
        return (meta.key for meta in self.checkpoints)


class Verified(NamedTuple):
    """What a check found."""

    intact: list[str]
    # Keys of damaged checkpoints, each with everything that is wrong.
    damaged: list[tuple[str, list[str]]]
    # Tensors that were decoded.
    decoded: int


class Collected(NamedTuple):
    """What was removed."""

    removed: list[str]
    removed_size: int
    # What is too young to be removed.
    too_young: list[str]


def _rebuilt(storage: str, config: StoreConfig, trusted: bool, exit_timeout: float) -> Compressor:
    compressor = Compressor.__new__(Compressor)
    compressor.storage, compressor.trusted, compressor._config = storage, trusted, config
    compressor.exit_timeout = exit_timeout
    compressor._opened = (os.getpid(), _mithril.Store(storage, config))
    return compressor
