"""Names of tensors: texts, not paths, by one rule wherever tensors are saved."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import safetensors.numpy
import torch
import torch.distributed.checkpoint as dcp

import mithril.safetensors as ms
from mithril.checkpoint import Compressor
from mithril.checkpoint.orbax import MithrilCheckpointHandler, MithrilSave
from mithril.checkpoint.torch import MithrilStorageReader, MithrilStorageWriter

# torch warns that one process needs no process group, Orbax of its own interfaces that are about to go.
pytestmark = pytest.mark.filterwarnings("ignore")

NAMES = [
    "/params/dense/kernel",
    "a/../b",
    "../w",
    "..",
    "",
    "back\\..\\slash",
    "nul\0",
    "line\nfeed",
    "C:\\w",
    "n" * 4096,
    "long" * 15_000,
    "\u91cd\u307f \U0001f917",
]
LONE = "weight \ud800"


def arrays(names: list[str] = NAMES) -> dict[str, Any]:
    return {name: np.arange(number, number + 3, dtype=np.float32) for number, name in enumerate(names)}


def check_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert sorted(found) == sorted(expected)
    for name, array in expected.items():
        assert np.array_equal(np.asarray(found[name]), np.asarray(array)), name[:40]


def files_below(path: Path) -> list[Path]:
    """What was written there; Orbax marks its temporary directory with a file of its own."""
    return [file for file in path.rglob("*") if file.is_file() and file.name != "_CHECKPOINT_METADATA"]


def save_distributed(state: dict[str, Any], path: Path) -> None:
    dcp.save(state, storage_writer=MithrilStorageWriter(path), no_dist=True)


def save_with_orbax(state: dict[str, Any], path: Path) -> None:
    with ocp.Checkpointer(MithrilCheckpointHandler()) as checkpointer:
        checkpointer.save(path, args=MithrilSave(state))


@pytest.mark.parametrize("framework", ["safetensors", "DCP", "Orbax", "Compressor"])
def test_any_name_that_is_saved_is_loaded(framework: str, tmp_path: Path) -> None:
    state = arrays()
    path = tmp_path / "saved"
    if framework == "safetensors":
        check_equal(ms.load(ms.save(state)), state)
        ms.save_file(state, path)
        check_equal(ms.load_file(path), state)
        with ms.safe_open(path, "np") as file:
            assert sorted(file.keys()) == sorted(state)
    elif framework == "DCP":
        tensors = {name: torch.from_numpy(array) for name, array in state.items()}
        # In order: NUL and the longest names are ordinary keys to torch, which nothing is the parent of.
        save_distributed(tensors, path)
        loaded = {name: torch.zeros(3) for name in state}
        dcp.load(loaded, storage_reader=MithrilStorageReader(path), no_dist=True)
        check_equal(loaded, state)
    elif framework == "Orbax":
        tree = {"nested": {name: jnp.asarray(array) for name, array in state.items()}}
        save_with_orbax(tree, path)
        with ocp.Checkpointer(MithrilCheckpointHandler()) as checkpointer:
            check_equal(checkpointer.restore(path)["nested"], state)
    else:
        compressor = Compressor(path)
        compressor.save(state, "names")
        check_equal(compressor.load("names"), state)
        compressor.save(state, "again", previous_key="names")
        check_equal(compressor.load("again"), state)


def test_names_that_the_package_accepts_are_listed_and_read() -> None:
    state = arrays()
    file = safetensors.numpy.save(state)
    packed = ms.compress_bytes(file)
    assert ms.decompress_bytes(packed) == file
    check_equal(ms.load(file), state)
    with ms.Reader.from_bytes(packed) as reader:
        assert sorted(reader.names()) == sorted(state)
        check_equal({name: reader.read_numpy(name) for name in reader.names()}, state)


@pytest.mark.parametrize("name", [LONE, "n" * 65_536], ids=["surrogate", "65536 bytes"])
def test_what_is_no_name_is_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    state = arrays(["fine", name])
    shown = "ud800.* cannot be the name" if name == LONE else "nnn.* cannot be the name of a tensor: .* 65535 bytes"
    with pytest.raises(ValueError, match=shown):
        ms.save(state)
    with pytest.raises(ValueError, match=shown):
        ms.save_file(state, tmp_path / "file")
    tensors = {key: torch.from_numpy(array) for key, array in state.items()}
    with pytest.raises(BaseException, match=shown):
        save_distributed(tensors, tmp_path / "distributed")
    with pytest.raises(BaseException, match=shown):
        save_with_orbax({key: jnp.asarray(array) for key, array in state.items()}, tmp_path / "orbax")
    assert files_below(tmp_path) == []


def test_the_name_of_the_metadata_is_no_tensor() -> None:
    with pytest.raises(ValueError, match=r"__metadata__.* keeps this name"):
        ms.save(arrays(["__metadata__"]))
