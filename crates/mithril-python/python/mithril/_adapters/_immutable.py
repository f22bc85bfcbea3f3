"""What adapters of frameworks have in common whose arrays never change and keep nothing but type and shape."""

from __future__ import annotations

from typing import Any


def describe(tensor: Any) -> dict[str, Any]:
    """Nothing but its type and shape is kept."""
    return {}


def identity(tensor: Any) -> Any:
    """Arrays never change, so only the same array shares its memory."""
    return id(tensor)


def together(tensors: list[Any]) -> tuple[Any, list[dict[str, Any] | None]]:
    """Any of them: they are the same."""
    return tensors[0], [None] * len(tensors)


def place(tensor: Any, entry: dict[str, Any], map_location: Any) -> Any:
    """Where the framework put it."""
    return tensor


def restore(tensor: Any, entry: dict[str, Any]) -> Any:
    """It is what it was."""
    return tensor
