"""Modules of a package that are imported when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType


def submodules(
    package: str, names: Sequence[str], public: Sequence[str]
) -> tuple[Callable[[str], ModuleType], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package; `public` are the names that are there already."""

    def getattribute(name: str) -> ModuleType:
        if name in names:
            try:
                return importlib.import_module(f"{package}.{name}")
            except ImportError as error:
                # So that `hasattr` and `help` go on where a framework is not installed.
                raise AttributeError(f"`{package}.{name}` cannot be imported: {error}", name=name) from error
        raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)

    def directory() -> list[str]:
        return sorted([*public, *names])

    return getattribute, directory
