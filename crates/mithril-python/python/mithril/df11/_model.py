"""Models that run with compressed weights."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from mithril import _mithril
from mithril._types import Path
from mithril.df11._files import PARTS, locate, read, read_parts

if TYPE_CHECKING:
    import torch


class DFloat11Model:
    """Opens DFloat11 directories as models of torch."""

    def __init__(self) -> None:
        raise TypeError("use `DFloat11Model.from_pretrained`, which returns the model itself")

    @staticmethod
    def from_pretrained(
        path: Path | None = None,
        device: str | torch.device = "cpu",
        *,
        cpu_offload: bool | None = None,
        bfloat16_model: torch.nn.Module | None = None,
        component: str | None = None,
        threads: int = 0,
    ) -> torch.nn.Module:
        """A model whose Linear and Embedding weights stay compressed, with outputs equal to the plain model's, bit for bit.

        The model is built from `config.json` of the directory alone, by `transformers` (`model_type`, `architectures`) or
        `diffusers` (`_class_name`); the plain weights are not needed. Each group of weights is decoded before the layer runs
        that needs it, into one buffer that all groups share: one forward pass at a time. Gradients that would need a weight
        are refused by torch. `model.df11` tells how many bytes are compressed and how many the buffer has; `state_dict()`
        holds the tensors of the DFloat11 files.

        Args:
            path: the directory; None is the root that `MITHRIL_DF11_ROOT` names.
            device: where the model runs. Other devices than the CPU need `cpu_offload`.
            cpu_offload: keep compressed weights in the memory of the CPU, decode there and copy a group at a time to the
                device. By default what `MITHRIL_DF11_CPU_OFFLOAD` says (1 or 0). Of no consequence on the CPU.
            bfloat16_model: a model to fill instead of building one; its own weights may be anything, also on `meta`.
            component: which component of a pipeline.
            threads: threads that decode; 0 is one per core.

        Returns:
            The model, ready for inference.

        Raises:
            CorruptError: a module is damaged. It is named.
            ValueError: the model and the directory do not fit together; what is missing is named.
            UnsupportedError: nobody knows how to build the model, or no decoder is there for the device.
        """
        import torch

        from mithril.df11._architecture import build

        place = locate(path, component)
        target = torch.device(device)
        offload = _is_set("MITHRIL_DF11_CPU_OFFLOAD") if cpu_offload is None else cpu_offload
        if target.type != "cpu" and not offload:
            raise _mithril.UnsupportedError(
                f"there is no decoder for {target.type} yet: `cpu_offload=True` decodes on the CPU and copies to the device"
            )
        directory = _mithril.Df11Directory.open(place, None)
        if bfloat16_model is None:
            bfloat16_model = build(json.loads((place / "config.json").read_text()), place)
        _fill(bfloat16_model, directory, target, threads)
        return bfloat16_model.eval()


def _is_set(variable: str) -> bool:
    text = os.environ.get(variable, "0")
    if text.lower() not in ("0", "1", "", "true", "false"):
        raise ValueError(f"{variable} is 0 or 1, not {text!r}")
    return text.lower() in ("1", "true")


def _fill(model: Any, directory: _mithril.Df11Directory, device: torch.device, threads: int) -> None:
    from mithril.df11._resident import Resident

    modules = dict(model.named_modules())
    groups = [_group(modules, directory, name, weights, device) for name, weights in directory.modules()]
    coded = {f"{group.name}.{part}" for group in groups for part in PARTS}
    _copy_plain(model, modules, directory, coded, device)
    model.df11 = Resident(groups, directory.geometry(), device, threads)


def _group(modules: dict[str, Any], directory: _mithril.Df11Directory, name: str, weights: Any, device: torch.device) -> Any:
    """A group with its parts in place of its weights."""
    from mithril.df11._resident import Compressed, Group, Weight

    found = []
    for full, _, _, start, end in weights:
        owner = modules.get(full.removesuffix(".weight"))
        parameter = owner._parameters.get("weight") if owner is not None else None
        if parameter is None:
            raise ValueError(f"the directory holds `{full}`, and the model has no such weight")
        if parameter.numel() != end - start:
            raise ValueError(f"`{full}` has {end - start} elements, and {tuple(parameter.shape)} in the model")
        owners = [module for module in modules.values() if module._parameters.get("weight") is parameter]
        found.append(Weight(owners, tuple(parameter.shape), start, end, Compressed.of_shape(parameter.shape)))
    group = Group(name, modules[name], found)
    for weight in found:
        for owner in weight.owners:
            del owner._parameters["weight"]
            owner.__dict__["weight"] = weight.placeholder
    parts = read_parts(directory, name)
    if device.type == "cpu":
        for part, tensor in parts.items():
            group.home.register_buffer(part, tensor)
    else:
        group.parts = parts
    inside = set(group.home.modules())
    group.users = [group.home, *_others(modules, found, inside)]
    return group


def _others(modules: dict[str, Any], weights: Any, inside: set[Any]) -> list[Any]:
    """Modules outside of a group that need its weights: those that share one, and those that take one from a layer."""
    from torch import nn

    owners = [owner for weight in weights for owner in weight.owners]
    users = [owner for owner in owners if owner not in inside]
    # Attention of torch computes with the weight of its output layer, and never runs that layer.
    for module in modules.values():
        if isinstance(module, nn.MultiheadAttention) and module.out_proj in owners and module not in inside:
            users.append(module)
    return users


def _copy_plain(model: Any, modules: dict[str, Any], directory: _mithril.Df11Directory, coded: set[str], device: Any) -> None:
    """Everything that is not compressed: from the files, or as the model made it."""
    import torch

    names = {name for name, _, _ in directory.tensors()} - coded
    for name, tensor in read(directory, names):
        owner_name, _, own = name.rpartition(".")
        owner = modules.get(owner_name)
        table = None
        if owner is not None:
            table = next((table for table in (owner._parameters, owner._buffers) if table.get(own) is not None), None)
        if owner is None or table is None:
            # Files may hold what newer code of a model computes itself.
            continue
        before = table[own]
        if before.shape != tensor.shape:
            raise ValueError(f"`{name}` is {tuple(tensor.shape)} in the directory, {tuple(before.shape)} in the model")
        placed = tensor.to(device)
        for module in modules.values():
            shared = module._parameters if table is owner._parameters else module._buffers
            for key, value in list(shared.items()):
                if value is before:
                    shared[key] = torch.nn.Parameter(placed, requires_grad=False) if shared is module._parameters else placed
    missing = [name for name, tensor in [*model.named_parameters(), *model.named_buffers()] if tensor.device.type == "meta"]
    if missing:
        raise ValueError(f"the directory has no values for {', '.join(f'`{name}`' for name in missing[:5])}")
    for module in modules.values():
        for key, value in list(module._buffers.items()):
            if value is not None and key not in PARTS and value.device != device:
                module._buffers[key] = value.to(device)
