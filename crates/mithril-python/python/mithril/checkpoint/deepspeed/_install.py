"""Putting the engine in its place, by what DeepSpeed's configuration says."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import deepspeed
from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine
from deepspeed.utils import log_dist, logger

from mithril._mithril import UnsupportedError
from mithril.checkpoint.deepspeed._engine import MithrilCheckpointEngine, Options

_METHODS = {"create", "save", "load", "commit"}
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "bool": (bool,),
    "int | None": (int, type(None)),
    "str | None": (str, type(None)),
}


def initialize(*args: Any, **kwargs: Any) -> tuple[Any, Any, Any, Any]:
    """`deepspeed.initialize`, and then `install` if the configuration has `"checkpoint": {"use_mithril": true}`."""
    engine, optimizer, loader, scheduler = deepspeed.initialize(*args, **kwargs)
    if _block(engine).get("use_mithril", False):
        install(engine)
    return engine, optimizer, loader, scheduler


def install(engine: Any, **options: Any) -> MithrilCheckpointEngine:
    """Makes an engine of DeepSpeed save and load its checkpoints through mithril.

    Options are those of `Options`; what is not given is taken from `"checkpoint": {"mithril_config": {...}}` of the
    configuration.

    Raises:
        ValueError: an option that there is none of, or `"use_mithril": false`.
        UnsupportedError: the engine does not save checkpoints as this expects it to.
    """
    block = _block(engine)
    if block.get("use_mithril") is False:
        raise ValueError('the configuration says `"use_mithril": false`: remove that, or do not install it')
    wanted = _checked({**(block.get("mithril_config") or {}), **options})
    _check_engine(engine)
    node_local = engine.use_node_local_storage()
    writes_manifest = engine.local_rank == 0 if node_local else engine.global_rank == 0
    installed = MithrilCheckpointEngine(engine._config, options=wanted, writes_manifest=writes_manifest)
    engine.checkpoint_engine = installed
    shown = ", ".join(f"{name}={value!r}" for name, value in dataclasses.asdict(wanted).items())
    # DeepSpeed shows warnings only, unless it is told otherwise.
    level = min(max(logging.INFO, logger.getEffectiveLevel()), logging.WARNING)
    log_dist(f"[mithril] checkpoints are compressed: {shown}", ranks=[0], level=level)
    return installed


def _block(engine: Any) -> dict[str, Any]:
    try:
        block = engine._config._param_dict.get("checkpoint") or {}
    except AttributeError:
        raise UnsupportedError(f"a {type(engine).__qualname__} has no configuration: is it an engine of DeepSpeed?") from None
    if not isinstance(block, dict):
        raise ValueError('`"checkpoint"` of the configuration is no object')
    return block


def _checked(options: dict[str, Any]) -> Options:
    known = {field.name: str(field.type) for field in dataclasses.fields(Options)}
    for name, value in options.items():
        if name not in known:
            raise ValueError(f"there is no option `{name}`: options are {', '.join(known)}")
        kinds = _TYPES[known[name]]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ValueError(f"option `{name}` is {value!r}, which is no {known[name]}")
    return Options(**options)


def _check_engine(engine: Any) -> None:
    before = getattr(engine, "checkpoint_engine", None)
    if isinstance(before, MithrilCheckpointEngine):
        raise ValueError("mithril is installed on this engine already")
    if type(before) is not TorchCheckpointEngine:
        raise UnsupportedError(
            f"the engine saves checkpoints through a {type(before).__qualname__}, which mithril cannot replace: remove "
            '`"writer"` and `"datastates_ckpt"` from the configuration'
        )
    methods = set(CheckpointEngine.__abstractmethods__)
    if methods != _METHODS:
        raise UnsupportedError(f"this version of DeepSpeed wants other methods of a checkpoint engine: {sorted(methods)}")
