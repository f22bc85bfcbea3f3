"""Trees of JAX as named leaves and a plain skeleton, which is what comes back when no target is given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax


def leaves_of(tree: Any) -> tuple[list[tuple[str, Any]], Any]:
    """All leaves by name, in the order of JAX, and the definition of the tree."""
    flat, definition = jax.tree_util.tree_flatten_with_path(tree)
    named = [("/".join(map(_part, path)), leaf) for path, leaf in flat]
    names = [name for name, _ in named]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two leaves of the tree have the name `{twice}`")
    return named, definition


def left_out_of(tree: Any) -> set[str]:
    """Names of the places of a tree that hold None."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is None)
    return {"/".join(map(_part, path)) for path, leaf in flat if leaf is None}


def is_in(name: str, places: set[str]) -> bool:
    """Whether a leaf is one of these places of its tree, or below one."""
    return bool(places) and any(name[:end] in places for end in _ends(name))


def _ends(name: str) -> Iterator[int]:
    """Where the name of each node ends that a leaf is in, and its own."""
    end = name.find("/")
    while end >= 0:
        yield end
        end = name.find("/", end + 1)
    yield len(name)


def skeleton_of(tree: Any) -> Any:
    """The tree in dictionaries, lists and tuples, with the names of leaves in their places.

    Nodes of other kinds, such as named tuples and dataclasses, are dictionaries by the names of their fields.
    """
    return _skeleton(tree, iter([name for name, _ in leaves_of(tree)[0]]))


def fill(skeleton: Any, leaves: dict[str, Any]) -> Any:
    """A skeleton with leaves in the places of their names."""
    if isinstance(skeleton, str):
        return leaves[skeleton]
    if isinstance(skeleton, dict):
        return {key: fill(item, leaves) for key, item in skeleton.items()}
    if isinstance(skeleton, (list, tuple)):
        return type(skeleton)(fill(item, leaves) for item in skeleton)
    return skeleton


def _skeleton(node: Any, names: Iterator[str]) -> Any:
    if node is None:
        return None
    if jax.tree_util.all_leaves([node]):
        return next(names)
    children = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda inner: inner is not node)[0]
    filled = [(path[0], _skeleton(child, names)) for path, child in children]
    if type(node) is dict:
        return {key.key: child for key, child in filled}
    if type(node) in (list, tuple):
        return type(node)(child for _, child in filled)
    return {_raw_part(key): child for key, child in filled}


def _raw_part(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _part(key: Any) -> str:
    """A step of a path. Slashes are escaped as in JSON pointers, so that names stay apart."""
    return _raw_part(key).replace("~", "~0").replace("/", "~1")
