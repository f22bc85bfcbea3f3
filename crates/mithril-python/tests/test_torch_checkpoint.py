"""PyTorch's distributed checkpoints through mithril, with the real torch and real processes."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter, state_dict_saver

import mithril
from mithril.checkpoint import torch as ours
from mithril.checkpoint._place import Place
from mithril.checkpoint.torch import _extension

# torch warns that one process needs no process group, and about its own storage classes.
pytestmark = pytest.mark.filterwarnings("ignore")


def state(seed: int = 1) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    special = torch.tensor([float("nan"), float("inf"), -0.0, 1e-40])
    return {
        "model": {
            "wide": randn(64, 300).bfloat16(),
            "flat": randn(1000),
            "ints": torch.arange(10),
            "scalar": torch.tensor(3.5),
            "empty": torch.empty(0, 4),
            "f8": randn(16, 16).to(torch.float8_e4m3fn),
            "special": special,
            "view": randn(8, 6).t(),
        },
        "optimizer": [{"lr": 1e-3, "steps": 7, "name": "adam", "betas": (0.9, None)}],
        "epoch": 3,
    }


def blank(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, dict):
        return {key: blank(item) for key, item in value.items()}
    if isinstance(value, list):
        return [blank(item) for item in value]
    return None


def check_equal(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert one.contiguous().flatten().view(torch.uint8).tolist() == (
            other.contiguous().flatten().view(torch.uint8).tolist()
        )
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, item in one.items():
            check_equal(item, other[key])
    elif isinstance(one, list):
        for item, theirs in zip(one, other, strict=True):
            check_equal(item, theirs)
    else:
        assert one == other


def save(path: Path | str, contents: Any, **options: Any) -> None:
    dcp.save(contents, storage_writer=ours.MithrilStorageWriter(path, **options))


def load(path: Path, contents: Any, **options: Any) -> Any:
    dcp.load(contents, storage_reader=ours.MithrilStorageReader(path, **options))
    return contents


def refused(error: BaseException) -> str:
    """What torch made of an exception of ours: its text is in there."""
    return f"{error}\n{error.__cause__}"


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


def test_what_was_saved_comes_back_with_its_types(tmp_path: Path) -> None:
    save(tmp_path / "one", state())
    check_equal(load(tmp_path / "one", blank(state())), state())
    kinds = sorted(file.suffix or file.name.split("-")[0] for file in (tmp_path / "one").iterdir())
    assert kinds == [".json", ".mckp", "sequence"]


def test_planners_work_with_torchs_own_storage(tmp_path: Path) -> None:
    contents = state()
    dcp.save(contents, storage_writer=FileSystemWriter(tmp_path / "p"), planner=ours.MithrilSavePlanner())
    loaded = blank(contents)
    dcp.load(loaded, storage_reader=FileSystemReader(tmp_path / "p"), planner=ours.MithrilLoadPlanner())
    check_equal(loaded, contents)

    # The planner also loads what was saved without it.
    dcp.save(contents, storage_writer=FileSystemWriter(tmp_path / "plain"))
    loaded = blank(contents)
    dcp.load(loaded, storage_reader=FileSystemReader(tmp_path / "plain"), planner=ours.MithrilLoadPlanner())
    check_equal(loaded, contents)


def test_the_extension_works_with_torchs_own_storage(tmp_path: Path) -> None:
    if not _extension.AVAILABLE:
        with pytest.raises(mithril.UnsupportedError, match=r"2\.7"):
            ours.MithrilExtension()
        return
    contents = state()
    writer = FileSystemWriter(tmp_path / "x", _extensions=[ours.MithrilExtension()])
    dcp.save(contents, storage_writer=writer)
    loaded = blank(contents)
    reader = FileSystemReader(tmp_path / "x", _extension_registry=ours.MithrilExtension.registry())
    dcp.load(loaded, storage_reader=reader)
    check_equal(loaded, contents)


def test_a_checkpoint_is_not_overwritten_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "one"
    save(path, state(1))
    with pytest.raises(BaseException, match="already") as caught:
        save(path, state(2))
    assert "overwrite=True" in refused(caught.value)
    check_equal(load(path, blank(state())), state(1))
    save(path, state(2), overwrite=True)
    check_equal(load(path, blank(state())), state(2))
    assert len(list(path.glob("*.mckp"))) == 1, "the old container is gone"


def test_deltas_are_small_bounded_and_need_their_base(tmp_path: Path) -> None:
    contents = {"w": torch.randn(256, 512, generator=torch.Generator().manual_seed(3)).bfloat16()}
    save(tmp_path / "step_0", contents)
    for step in range(1, 5):
        contents["w"][step] *= 1.5
        save(tmp_path / f"step_{step}", contents, base=tmp_path / f"step_{step - 1}", max_since_whole=3)
        check_equal(load(tmp_path / f"step_{step}", blank(contents)), contents)
    sizes = [size_of(tmp_path / f"step_{step}") for step in range(5)]
    assert max(sizes[1:4]) < sizes[0] / 10, sizes
    assert sizes[4] > sizes[0] / 2, "stored whole again"
    os.rename(tmp_path / "step_0", tmp_path / "moved")
    with pytest.raises(BaseException, match="step_0"):
        load(tmp_path / "step_3", blank(contents))
    # Another checkpoint in its place is not taken for it.
    save(tmp_path / "step_0", contents)
    with pytest.raises(BaseException, match="written anew"):
        load(tmp_path / "step_3", blank(contents))


def test_a_chunk_that_the_base_does_not_have_is_stored_whole(tmp_path: Path) -> None:
    save(tmp_path / "a", {"w": torch.ones(8, 8)})
    contents = {"w": torch.randn(16, 4), "new": torch.randn(5)}
    save(tmp_path / "b", contents, base=tmp_path / "a")
    check_equal(load(tmp_path / "b", blank(contents)), contents)


def test_part_of_a_checkpoint_is_loaded_and_what_is_missing_is_named(tmp_path: Path) -> None:
    save(tmp_path / "one", state())
    part = {"model": {"flat": torch.zeros(1000)}}
    check_equal(load(tmp_path / "one", part)["model"]["flat"], state()["model"]["flat"])
    with pytest.raises(BaseException, match="other"):
        load(tmp_path / "one", {"model": {"other": torch.zeros(3)}})


def test_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "one"
    save(path, state())
    with pytest.raises(BaseException, match="no checkpoint"):
        load(tmp_path / "nowhere", blank(state()))
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["version"] = 9
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BaseException, match="version 9"):
        load(path, blank(state()))
    manifest["version"] = 1
    manifest["body"]["step"] = 5
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BaseException, match="digest"):
        load(path, blank(state()))
    (path / "manifest.json").unlink()
    with pytest.raises(BaseException, match="no finished checkpoint"):
        load(path, blank(state()))


def test_a_missing_container_is_named(tmp_path: Path) -> None:
    path = tmp_path / "one"
    save(path, state())
    container = next(path.glob("*.mckp"))
    container.unlink()
    with pytest.raises(BaseException, match="missing"):
        load(path, blank(state()))


def test_nothing_is_committed_without_a_result_for_every_item(tmp_path: Path) -> None:
    class Forgetful(ours.MithrilStorageWriter):
        def write_data(self, plan: Any, planner: Any) -> Any:
            results = super().write_data(plan, planner).wait()
            future: torch.futures.Future[Any] = torch.futures.Future()
            future.set_result(results[:-1])
            return future

    with pytest.raises(BaseException, match="nothing is committed"):
        dcp.save({"a": torch.ones(3), "b": torch.ones(4)}, storage_writer=Forgetful(tmp_path / "one"))
    assert not (tmp_path / "one" / "manifest.json").exists()


class Opaque:
    """Only unpickling makes one of these."""

    def __init__(self) -> None:
        self.value = 5

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and other.value == self.value


def test_objects_are_unpickled_only_when_trusted(tmp_path: Path) -> None:
    contents = {"w": torch.ones(3), "thing": Opaque()}
    save(tmp_path / "one", contents)
    with pytest.raises(BaseException, match="trusted=True"):
        load(tmp_path / "one", {"w": torch.zeros(3), "thing": None})
    assert load(tmp_path / "one", {"w": torch.zeros(3), "thing": None}, trusted=True)["thing"] == Opaque()


def test_latest_and_retention_keep_what_is_needed(tmp_path: Path) -> None:
    contents = {"w": torch.randn(64, 64)}
    for step in range(5):
        base = tmp_path / f"step_{step - 1}" if step else None
        ours.save(
            contents,
            checkpoint_id=tmp_path / f"step_{step}",
            base=base,
            step=step,
            keep_last=2,
            no_dist=True,
            max_since_whole=100,
        )
    kept = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert kept == ["step_0", "step_3", "step_4"], "the two last, and what they are stored against"
    assert ours.latest(tmp_path) == tmp_path / "step_4"
    (tmp_path / "latest").unlink()
    assert ours.latest(tmp_path) == tmp_path / "step_4", "a missing pointer is not fatal"
    loaded = {"w": torch.zeros(64, 64)}
    ours.load(loaded, checkpoint_id=ours.latest(tmp_path), no_dist=True)
    check_equal(loaded, contents)


def test_retention_that_is_interrupted_leaves_whole_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = {"w": torch.randn(64, 64)}
    for step, base in enumerate((None, "step_0", "step_0")):
        base = None if base is None else tmp_path / base
        ours.save(contents, checkpoint_id=tmp_path / f"step_{step}", base=base, step=step, no_dist=True)
    remove, n_left = Place.remove, 2

    def remove_some(place: Place, first: str) -> None:
        nonlocal n_left
        if n_left == 0:
            raise KeyboardInterrupt
        n_left -= 1
        remove(place, first)

    monkeypatch.setattr(Place, "remove", remove_some)
    with pytest.raises(KeyboardInterrupt):
        ours.save(contents, checkpoint_id=tmp_path / "step_3", step=3, keep_last=1, no_dist=True)
    left = sorted(path.parent for path in tmp_path.glob("*/manifest.json"))
    assert [path.name for path in left] == ["step_0", "step_3"]
    for path in left:
        check_equal(load(path, {"w": torch.zeros(64, 64)}), contents)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def as_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process group is made from. Other tests must not see it: trainers would take it for theirs."""
    settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "RANK": "0", "WORLD_SIZE": "1"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


# Old versions of torch have threads only.
MODES = getattr(state_dict_saver, "AsyncCheckpointerType", (None,))


@pytest.mark.parametrize("mode", MODES)
def test_saving_in_the_background_keeps_the_moment_of_the_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: Any
) -> None:
    as_one_rank(monkeypatch)
    dist.init_process_group("gloo")
    try:
        contents = {"w": torch.randn(256, 256), "step": 4}
        before = contents["w"].clone()
        options = {} if mode is None else {"async_checkpointer_type": mode}
        future = ours.async_save(contents, checkpoint_id=tmp_path / "one", **options)
        contents["w"].fill_(0)
        future.result(timeout=120)
        assert ours.latest(tmp_path) == tmp_path / "one"
        loaded = load(tmp_path / "one", {"w": torch.zeros(256, 256), "step": None})
        assert torch.equal(loaded["w"], before) and loaded["step"] == 4
    finally:
        dist.destroy_process_group()


def test_any_number_of_ranks_loads_what_any_other_saved(tmp_path: Path) -> None:
    """Groups of 1, 2 and 4 ranks save, groups of 1 to 4 load, in every layout and type, by every way: 144 loads."""
    script = Path(__file__).with_name("dcp_ranks.py")
    port = str(free_port())
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), port, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for rank in range(4)
    ]
    outputs = [rank.communicate(timeout=500)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0, 0], "\n".join(outputs)
    assert f"checked {144 if _extension.AVAILABLE else 108}" in outputs[0]


def test_places_that_are_none_are_refused_by_name(tmp_path: Path) -> None:
    for wrong in ("memory://", "ftp://host/run"):
        with pytest.raises(mithril.UnsupportedError, match=wrong):
            ours.MithrilStorageWriter(wrong)
        assert not ours.MithrilStorageReader.validate_checkpoint_id(wrong)
    assert ours.MithrilStorageReader.validate_checkpoint_id("s3://bucket/run")
    save(f"file://{tmp_path}/one", state())
    check_equal(load(tmp_path / "one", blank(state())), state())


def test_a_planner_compresses_as_its_compressor_does(tmp_path: Path) -> None:
    values = torch.randn(64, 4096, generator=torch.Generator().manual_seed(3)).bfloat16()
    contents = {"values": values, "repeats": torch.arange(300).repeat(400), "step": 3}

    def sizes(planner: Any, name: str) -> dict[str, int]:
        path = tmp_path / name
        dcp.save(contents, storage_writer=FileSystemWriter(path), planner=planner, no_dist=True)
        loaded = blank(contents)
        dcp.load(loaded, storage_reader=FileSystemReader(path), planner=ours.MithrilLoadPlanner(), no_dist=True)
        check_equal(loaded, contents)
        metadata = FileSystemReader(path).read_metadata()
        return {index.fqn.split("\x1f")[0]: info.length for index, info in metadata.storage_data.items()}

    plain = sizes(ours.MithrilSavePlanner(), "plain")
    small = sizes(ours.MithrilSavePlanner(mithril.checkpoint.Compressor("memory://", effort="max")), "max")
    assert small == sizes(ours.MithrilSavePlanner(effort="max", compression_level=3), "same")
    assert small["values"] < plain["values"] or small["repeats"] < plain["repeats"]
    compressor = mithril.checkpoint.Compressor("memory://", byte_grouping=False)
    assert sizes(ours.MithrilSavePlanner(compressor), "bytes")["values"] != plain["values"]
    by_level = [
        sizes(ours.MithrilSavePlanner(mithril.checkpoint.Compressor("memory://", compression_level=n)), f"l{n}")["repeats"]
        for n in (1, 19)
    ]
    assert by_level[1] <= by_level[0]
    assert ours.MithrilSavePlanner(flatten_state_dict=False).flatten_state_dict is False
    with pytest.raises(TypeError, match=r"`compressor` is a mithril\.checkpoint\.Compressor, not a bool.*flatten_state_dict"):
        ours.MithrilSavePlanner(True)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the compressor has"):
        ours.MithrilSavePlanner(compressor, effort="max")
