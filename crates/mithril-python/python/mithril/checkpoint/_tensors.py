"""The tensors of a state: each under a name of its own, memory that several share stored once."""

from __future__ import annotations

from typing import Any

from mithril import _adapters
from mithril._mithril import CorruptError, check_tensor_names

# The key that says what an object of the text stands for, where that is not itself.
MARK = "$"


class TensorTable:
    """Tensors of a state that is taken apart.

    With `keeps_views`, tensors that share memory are stored as one and share it again. Without, only tensors that are the
    same view are: others are stored by themselves, under their names and with their shapes.
    """

    def __init__(self, *, keeps_views: bool = True) -> None:
        self._keeps_views = keeps_views
        self._names: set[str] = set()
        # By the memory they lie in: tensors of torch that share a storage, and arrays that are the same object.
        self._shared: dict[Any, list[tuple[str, _adapters.Adapter, Any, dict[str, Any]]]] = {}

    def add(self, adapter: _adapters.Adapter, tensor: Any, path: str) -> dict[str, Any]:
        """Take a tensor in; returns what the text says of it, which `finish` completes."""
        entry: dict[str, Any] = {MARK: "tensor", "framework": adapter.FRAMEWORK, **adapter.describe(tensor)}
        identity = adapter.identity if self._keeps_views else getattr(adapter, "view_identity", adapter.identity)
        self._shared.setdefault(identity(tensor), []).append((path, adapter, tensor, entry))
        return entry

    def finish(self) -> list[tuple[str, str, tuple[int, ...], Any]]:
        """All memory that is to be stored: name, number type, dimensions, bytes."""
        stored = []
        for group in self._shared.values():
            path, adapter, first, _ = group[0]
            name = self._free_name(path)
            views = None
            try:
                if len(group) > 1:
                    first, views = adapter.together([tensor for _, _, tensor, _ in group])
                data, dtype, shape = adapter.borrow(first)
            except (TypeError, ValueError) as error:
                raise type(error)(f"`{path}`: {error}") from None
            for number, (_, _, _, entry) in enumerate(group):
                entry["name"] = name
                if views is not None and views[number] is not None:
                    entry["view"] = views[number]
            stored.append((name, dtype, tuple(shape), data))
        return stored

    def _free_name(self, path: str) -> str:
        try:
            # With room for a number behind it.
            check_tensor_names([path, f"{path}#{len(self._names) + 2}"])
            first = path or "tensor"
        except ValueError:
            first = "tensor"
        name = first
        number = 1
        while name in self._names:
            number += 1
            name = f"{first}#{number}"
        self._names.add(name)
        return name


class LoadedTensors:
    """Tensors of a state that is put together."""

    def __init__(self, stored: list[tuple[str, str, list[int], int]], map_location: Any) -> None:
        self._stored = {name: (dtype, tuple(shape), size) for name, dtype, shape, size in stored}
        self._map_location = map_location
        # What is decoded into, and the memory of it, by name.
        self._made: dict[str, tuple[Any, Any]] = {}
        self._whole: dict[str, Any] = {}

    def expect(self, entry: dict[str, Any]) -> None:
        """Make room for a tensor."""
        name = entry["name"]
        if name not in self._stored:
            raise CorruptError(f"the state has a tensor `{name}`, and the checkpoint has none")
        if name not in self._made:
            self._made[name] = _adapters.named(entry["framework"]).empty(*self._stored[name])

    def buffers(self) -> list[tuple[str, Any]]:
        """Names and memory of what is to be decoded."""
        return [(name, memory) for name, (_, memory) in self._made.items()]

    def finished(self, entry: dict[str, Any]) -> Any:
        """A tensor, once its memory is filled. Tensors that shared memory share it again."""
        name = entry["name"]
        adapter = _adapters.named(entry["framework"])
        if name not in self._whole:
            whole = adapter.finish(self._made[name][0])
            self._whole[name] = adapter.place(whole, entry, self._map_location)
        return adapter.restore(self._whole[name], entry)
