"""Shardings as plain values, so that arrays without a target come back where they were."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


class Shardings:
    """The shardings of a tree that is being saved: meshes once, and by name which of them and how it is divided."""

    def __init__(self) -> None:
        self._meshes: list[dict[str, Any]] = []
        self._numbers: dict[Any, int] = {}
        self._of: dict[str, list[Any]] = {}

    def add(self, name: str, sharding: Any) -> None:
        """Notes the sharding of an array, if it is of a kind that can be made again anywhere."""
        described = _described(sharding)
        if described is None:
            return
        identity, mesh, spec = described
        if identity not in self._numbers:
            self._numbers[identity] = len(self._meshes)
            self._meshes.append(mesh)
        self._of[name] = [self._numbers[identity], spec]

    def plain(self) -> dict[str, Any]:
        """All of them, as a reader takes them."""
        return {"meshes": self._meshes, "arrays": self._of}


class Saved:
    """The shardings of a tree that was saved, as far as their devices are here."""

    def __init__(self, plain: Any) -> None:
        found = plain if isinstance(plain, dict) else {"meshes": [], "arrays": {}}
        self._of: dict[str, list[Any]] = found["arrays"]
        devices = {device.id: device for device in jax.devices()}
        self._meshes = [_mesh(mesh, devices) for mesh in found["meshes"]]

    def get(self, name: str) -> Any:
        """The sharding that an array had; None if its devices are not here, or it is not known."""
        if name not in self._of:
            return None
        number, spec = self._of[name]
        mesh = self._meshes[number]
        if mesh is None or spec is None:
            return mesh
        parts = (tuple(part) if isinstance(part, (list, tuple)) else part for part in spec)
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*parts))


def _described(sharding: Any) -> tuple[Any, dict[str, Any], Any] | None:
    if isinstance(sharding, jax.sharding.SingleDeviceSharding):
        (device,) = sharding.device_set
        return device.id, {"devices": [device.id]}, None
    if not isinstance(sharding, jax.sharding.NamedSharding):
        return None
    mesh = sharding.mesh
    names, spec = list(mesh.axis_names), [list(part) if isinstance(part, tuple) else part for part in sharding.spec]
    if not all(isinstance(name, str) for name in names) or not all(isinstance(p, (str, list, type(None))) for p in spec):
        return None
    plain: dict[str, Any] = {
        "axes": names,
        "shape": list(mesh.devices.shape),
        "devices": [device.id for device in mesh.devices.flat],
    }
    kinds = [kind.name for kind in getattr(mesh, "axis_types", None) or ()]
    if any(kind != "Auto" for kind in kinds):
        plain["axis_types"] = kinds
    return mesh, plain, spec


def _mesh(plain: dict[str, Any], devices: dict[int, Any]) -> Any:
    """A mesh, or the sharding of a single device; None if one of the devices is not here."""
    if not devices.keys() >= set(plain["devices"]):
        return None
    found = [devices[number] for number in plain["devices"]]
    if "axes" not in plain:
        is_ours = found[0].process_index == jax.process_index()
        return jax.sharding.SingleDeviceSharding(found[0]) if is_ours else None
    options = {}
    if "axis_types" in plain:
        options["axis_types"] = tuple(jax.sharding.AxisType[kind] for kind in plain["axis_types"])
    return jax.sharding.Mesh(np.array(found).reshape(plain["shape"]), tuple(plain["axes"]), **options)
