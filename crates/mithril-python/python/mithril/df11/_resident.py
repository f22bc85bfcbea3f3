"""Weights that stay compressed: decoded when the module that needs them runs, into one buffer that all of them share.

A group is what DFloat11 codes as one run: the weight of a Linear or Embedding, or those of several submodules of a block.
Before a module runs that needs a group, a hook decodes it to its place in the buffer and gives the layers their weights;
after it, the weights are without values again. Groups lie at the same place unless one runs inside of another.

Of an Embedding only the rows that are asked for are decoded, so that the buffer need not hold its whole table.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from mithril._adapters import torch as adapter
from mithril.df11._files import PARTS, decode

# Places in the buffer start at multiples of this, for the sake of kernels.
_ALIGNMENT = 64


class Compressed(torch.Tensor):  # type: ignore[misc]
    """A weight that is compressed: type and shape, but no values, so that computing with it is an error."""

    _HARMLESS = frozenset({"__get__", "size", "dim", "numel", "nelement", "element_size", "is_floating_point", "is_complex"})

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") not in cls._HARMLESS:
            raise RuntimeError("this weight is compressed, and has values only while its layer runs")
        return super().__torch_function__(func, types, args, kwargs)

    def __repr__(self, **_: Any) -> str:
        return f"Compressed(shape={tuple(self.shape)}, dtype={self.dtype})"

    @classmethod
    def of_shape(cls, shape: Any) -> torch.Tensor:
        """A BF16 weight of this shape."""
        made: torch.Tensor = torch.Tensor._make_subclass(cls, torch.empty(shape, dtype=torch.bfloat16, device="meta"))
        return made


@dataclass(eq=False)
class Weight:
    """A weight of a group, and the modules that have it as `weight`."""

    owners: list[nn.Module]
    shape: tuple[int, ...]
    start: int
    end: int
    # What the modules have while they do not run: type and shape, but no values.
    placeholder: torch.Tensor


@dataclass(eq=False)
class Group:
    """Weights that are coded as one run."""

    name: str
    home: nn.Module
    weights: list[Weight]
    # Modules that need it decoded when they run.
    users: list[nn.Module] = field(default_factory=list)
    # Its parts, if they do not lie with its module as buffers.
    parts: dict[str, torch.Tensor] | None = None
    # Where it goes in the buffer, in bytes.
    offset: int = 0

    @property
    def size(self) -> int:
        """Bytes of its weights, decoded."""
        return 2 * self.weights[-1].end

    def is_lookup(self) -> bool:
        """Whether it is a table of which rows are looked up, in the usual way."""
        home = self.home
        return isinstance(home, nn.Embedding) and type(home).forward is nn.Embedding.forward

    def coded(self) -> dict[str, torch.Tensor]:
        """Its parts."""
        if self.parts is not None:
            return self.parts
        parts: dict[str, torch.Tensor] = {part: getattr(self.home, part) for part in PARTS}
        if parts["luts"].device.type != "cpu":
            device = parts["luts"].device
            raise ValueError(f"compressed weights were moved to {device}: load the model with `device={str(device)!r}` instead")
        return parts


class Resident:
    """The compressed weights of a model; `model.df11` is one."""

    def __init__(self, groups: list[Group], geometry: tuple[int, int], device: torch.device, threads: int) -> None:
        self.groups = groups
        self.device = device
        self._geometry = geometry
        self._threads = threads
        self._buffer = self._staging = _allocate(0, torch.device("cpu"))
        # Who runs, outermost first: the module, the group that it needed, and what of the module must be put back.
        self._running: list[tuple[nn.Module, Group, dict[str, Any]]] = []
        self._thread = 0
        self._subtrees = {id(user): set(user.modules()) for group in groups for user in group.users}
        self._place()
        for group in groups:
            for user in group.users:
                self._watch(group, user)

    @property
    def compressed_bytes(self) -> int:
        """Bytes of all compressed weights."""
        return sum(tensor.nbytes for group in self.groups for tensor in group.coded().values())

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the buffer that weights are decoded into: as large as the largest group that ran so far."""
        buffers = {id(buffer): int(buffer.nbytes) for buffer in (self._buffer, self._staging)}
        return sum(buffers.values())

    def _place(self) -> None:
        """Groups that run inside of others lie behind them."""
        depth = {id(group): max(len(self._around(user)) for user in group.users) for group in self.groups}
        for group in sorted(self.groups, key=lambda group: depth[id(group)]):
            around = [outer for user in group.users for outer in self._around(user) if outer is not group]
            ends = [outer.offset + outer.size for outer in around]
            group.offset = -(-max(ends, default=0) // _ALIGNMENT) * _ALIGNMENT

    def _around(self, user: nn.Module) -> list[Group]:
        return [
            group for group in self.groups for outer in group.users if outer is not user and user in self._subtrees[id(outer)]
        ]

    def _watch(self, group: Group, user: nn.Module) -> None:
        def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
            return self._enter(group, user, args, kwargs)

        def after(module: nn.Module, args: Any, output: Any) -> None:
            self._leave(group, user)

        user.register_forward_pre_hook(before, with_kwargs=True)
        user.register_forward_hook(after, always_call=True)

    def _enter(self, group: Group, user: nn.Module, args: Any, kwargs: Any) -> Any:
        thread = threading.get_ident()
        if self._running and self._thread != thread:
            raise RuntimeError("another thread is running this model, whose weights share one buffer: run one at a time")
        self._thread = thread
        # What was interrupted, and what calls modules that are not its own, must not find weights of others in its place.
        while self._running and user not in self._subtrees[id(self._running[-1][0])]:
            self._close(*self._running.pop())
        if group.is_lookup() and user is group.home:
            return self._look_up(group, user, args, kwargs)
        weights = self._decode(group, group.size)
        for weight in group.weights:
            values = weights[weight.start : weight.end].view(weight.shape)
            for owner in weight.owners:
                owner.__dict__["weight"] = values
        self._running.append((user, group, {}))
        return None

    def _look_up(self, group: Group, table: Any, args: Any, kwargs: Any) -> Any:
        ids = args[0] if args else kwargs["input"]
        rows, inverse = torch.unique(ids, return_inverse=True)
        row_len = table.embedding_dim
        if rows.numel() and (rows[0] < 0 or rows[-1] >= table.num_embeddings):
            raise IndexError(f"index out of range: {table.num_embeddings} rows, asked for {int(rows[0])} to {int(rows[-1])}")
        numbers = adapter.memory(rows.to("cpu", torch.int64))
        values = self._decode(group, 2 * row_len * rows.numel(), (numbers, row_len)).view(-1, row_len)
        table.__dict__["weight"] = values
        self._running.append((table, group, {"padding_idx": table.padding_idx}))
        # It is the number of a row that may not be among those decoded, and has no meaning without gradients.
        table.padding_idx = None
        return (inverse, *args[1:]) if args else (), kwargs if args else {**kwargs, "input": inverse}

    def _leave(self, group: Group, user: nn.Module) -> None:
        if self._running and self._running[-1][:2] == (user, group):
            self._close(*self._running.pop())

    def _close(self, user: nn.Module, group: Group, put_back: dict[str, Any]) -> None:
        for name, value in put_back.items():
            setattr(user, name, value)
        if any(other is group for _, other, _ in self._running):
            return
        for weight in group.weights:
            for owner in weight.owners:
                owner.__dict__["weight"] = weight.placeholder

    def _decode(self, group: Group, size: int, rows: Any = None) -> torch.Tensor:
        """Decode a group, or some of its rows, to its place."""
        end = group.offset + size
        if self._buffer.nbytes < end:
            # Weights in use keep the memory that they lie in.
            self._buffer = _allocate(end, self.device)
            self._staging = self._buffer if self.device.type == "cpu" else _allocate(end, torch.device("cpu"))
        staged = self._staging[group.offset : end]
        decode(group.name, group.coded(), self._geometry, adapter.memory(staged), rows, self._threads)
        place = self._buffer[group.offset : end]
        if self._staging is not self._buffer:
            place.copy_(staged)
        # A gradient that would need the weights that were here is an error, not wrong.
        torch.autograd.graph.increment_version(self._buffer)
        return place.view(torch.bfloat16)


def _allocate(size: int, device: torch.device) -> torch.Tensor:
    with torch.inference_mode(False):
        return torch.empty(size, dtype=torch.uint8, device=device, pin_memory=False)
