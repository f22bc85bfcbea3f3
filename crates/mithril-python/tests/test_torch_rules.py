"""What PyTorch says of a storage of distributed checkpoints, and what mithril adds to it, each by a case of its own."""

import inspect
import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from test_torch_checkpoint import as_one_rank, blank, check_equal, free_port, load, refused, save, size_of, state
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner

import mithril
from mithril.checkpoint import _manifest
from mithril.checkpoint import torch as ours
from mithril.checkpoint._place import Place
from mithril.checkpoint._sealed import sealed
from mithril.checkpoint.torch import _latest

# torch warns that one process needs no process group, and about its own storage classes.
pytestmark = pytest.mark.filterwarnings("ignore")

# Old versions of torch make a plan for every save.
CACHING = {"enable_plan_caching": True} if "enable_plan_caching" in inspect.signature(DefaultSavePlanner).parameters else {}


def numbers(seed: int = 1, rows: int = 256) -> dict[str, torch.Tensor]:
    return {"w": torch.randn(rows, 256, generator=torch.Generator().manual_seed(seed)).bfloat16()}


def test_ranks_that_fail_plans_that_are_kept_and_worlds_that_change(tmp_path: Path) -> None:
    """Two real ranks; `dcp_rules.py` says what they do."""
    script = Path(__file__).with_name("dcp_rules.py")
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), port, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=500)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)
    assert "all rules hold" in outputs[0]


# What is loaded


def test_a_state_that_asks_for_more_is_refused_unless_it_may_be_partial(tmp_path: Path) -> None:
    save(tmp_path / "one", {"a": torch.ones(3), "b": torch.ones(4)})
    wanted = {"a": torch.zeros(3), "new": torch.full((2,), 7.0)}
    with pytest.raises(BaseException, match="new"):
        load(tmp_path / "one", wanted)
    reader = ours.MithrilStorageReader(tmp_path / "one")
    dcp.load(wanted, storage_reader=reader, planner=DefaultLoadPlanner(allow_partial_load=True))
    assert wanted["a"].tolist() == [1, 1, 1] and wanted["new"].tolist() == [7, 7], "what is not there stays"


def test_a_tensor_of_another_size_is_refused_and_stays_as_it_was(tmp_path: Path) -> None:
    save(tmp_path / "one", {"a": torch.ones(3, 4)})
    for wrong in (torch.zeros(4, 3), torch.zeros(12), torch.zeros(2, 4)):
        with pytest.raises(BaseException, match=r"(?i)size"):
            load(tmp_path / "one", {"a": wrong})
        assert not wrong.any()


def test_another_number_type_converts_as_with_torchs_own_reader(tmp_path: Path) -> None:
    contents = numbers()
    save(tmp_path / "one", contents)
    dcp.save(contents, storage_writer=dcp.FileSystemWriter(tmp_path / "stock"))
    for dtype in (torch.float32, torch.float64):
        theirs = {"w": torch.zeros(256, 256, dtype=dtype)}
        dcp.load(theirs, storage_reader=dcp.FileSystemReader(tmp_path / "stock"))
        check_equal(load(tmp_path / "one", {"w": torch.zeros(256, 256, dtype=dtype)}), theirs)


def test_one_writer_and_one_reader_serve_many_checkpoints(tmp_path: Path) -> None:
    writer = ours.MithrilStorageWriter(tmp_path / "a")
    for name, seed in (("a", 1), ("b", 2)):
        dcp.save(numbers(seed), storage_writer=writer, checkpoint_id=tmp_path / name)
    reader = ours.MithrilStorageReader(tmp_path / "a")
    for name, seed in (("b", 2), ("a", 1)):
        loaded = blank(numbers())
        dcp.load(loaded, storage_reader=reader, checkpoint_id=tmp_path / name)
        check_equal(loaded, numbers(seed))


class Counter:
    """Something with a state of its own, as torch knows it."""

    def __init__(self, count: int) -> None:
        self.count, self.weights = count, torch.full((5,), float(count))

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.weights = state["count"], state["weights"]


def test_objects_with_a_state_of_their_own_are_asked_for_it(tmp_path: Path) -> None:
    save(tmp_path / "one", {"counter": Counter(5), "plain": 3})
    other = Counter(0)
    load(tmp_path / "one", {"counter": other, "plain": None})
    assert other.count == 5 and other.weights.tolist() == [5] * 5


# What is saved


def test_plans_are_kept_between_saves(tmp_path: Path) -> None:
    """With a plan of the first save, the second one is written to its own place and against its own base."""
    contents = state()
    for step in range(3):
        contents["model"]["wide"][step] += 1
        contents["epoch"] = step
        base = tmp_path / f"step_{step - 1}" if step else None
        writer = ours.MithrilStorageWriter(tmp_path / f"step_{step}", base=base)
        dcp.save(contents, storage_writer=writer, planner=DefaultSavePlanner(**CACHING))
        check_equal(load(tmp_path / f"step_{step}", blank(contents)), contents)
    containers = [path.name for step in range(3) for path in (tmp_path / f"step_{step}").glob("*.mckp")]
    assert len(set(containers)) == 3


def test_a_tensor_without_values_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BaseException, match="meta"):
        save(tmp_path / "one", {"a": torch.ones(2), "ghost": torch.empty(3, device="meta")})
    assert not (tmp_path / "one" / "manifest.json").exists()


def test_every_bit_pattern_comes_back_alone_and_against_a_base(tmp_path: Path) -> None:
    """NaN with payloads, both infinities, both zeros and subnormals, also where only those change."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    contents = {"bf16": every.view(torch.bfloat16), "f16": every.view(torch.float16).clone()}
    rolled = {name: tensor.view(torch.int16).roll(1).view(tensor.dtype) for name, tensor in contents.items()}
    rolled["f32"] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45] * 100)
    save(tmp_path / "one", contents)
    save(tmp_path / "two", rolled, base=tmp_path / "one")
    check_equal(load(tmp_path / "one", blank(contents)), contents)
    check_equal(load(tmp_path / "two", blank(rolled)), rolled)


# What is refused, with nothing lost


def test_saves_without_a_coordinator_are_refused(tmp_path: Path) -> None:
    with pytest.raises(mithril.UnsupportedError, match="use_collectives"):
        ours.MithrilStorageWriter(tmp_path / "one").set_up_storage_writer(True, use_collectives=False)


def test_of_two_saves_of_one_place_one_is_told(tmp_path: Path) -> None:
    class Slow(ours.MithrilStorageWriter):
        def finish(self, metadata: Any, results: Any) -> None:
            # Another save of the same place ends first.
            save(tmp_path / "one", numbers(2))
            super().finish(metadata, results)

    with pytest.raises(BaseException, match="first") as caught:
        dcp.save(numbers(1), storage_writer=Slow(tmp_path / "one"))
    assert "another save has finished" in refused(caught.value)
    check_equal(load(tmp_path / "one", blank(numbers())), numbers(2))


def test_a_base_that_is_written_anew_during_a_save_is_noticed(tmp_path: Path) -> None:
    class Slow(ours.MithrilStorageWriter):
        def finish(self, metadata: Any, results: Any) -> None:
            save(tmp_path / "base", numbers(5), overwrite=True)
            super().finish(metadata, results)

    save(tmp_path / "base", numbers(1))
    with pytest.raises(BaseException, match="written anew while"):
        dcp.save(numbers(2), storage_writer=Slow(tmp_path / "next", base=tmp_path / "base"))
    assert not (tmp_path / "next" / "manifest.json").exists()


def test_what_others_are_stored_against_is_not_overwritten(tmp_path: Path) -> None:
    save(tmp_path / "a", numbers(1))
    save(tmp_path / "b", numbers(1), base=tmp_path / "a")
    with pytest.raises(BaseException, match="stored against"):
        save(tmp_path / "a", numbers(2), overwrite=True)
    check_equal(load(tmp_path / "b", blank(numbers())), numbers(1))
    save(tmp_path / "b", numbers(3), overwrite=True)
    save(tmp_path / "a", numbers(2), overwrite=True)
    check_equal(load(tmp_path / "b", blank(numbers())), numbers(3))


def test_a_checkpoint_that_replaces_its_own_base_is_stored_whole(tmp_path: Path) -> None:
    save(tmp_path / "a", numbers(1))
    save(tmp_path / "a", numbers(1), base=tmp_path / "a", overwrite=True)
    assert json.loads((tmp_path / "a" / "manifest.json").read_text())["body"]["base"] is None
    check_equal(load(tmp_path / "a", blank(numbers())), numbers(1))


def test_a_base_that_is_none_is_named_before_anything_is_written(tmp_path: Path) -> None:
    for wrong, message in ((tmp_path / "nowhere", "no checkpoint"), (tmp_path / "empty", "no finished checkpoint")):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(BaseException, match=message):
            save(tmp_path / "one", numbers(), base=wrong)
        assert not list(tmp_path.glob("one/*"))


def test_a_base_that_was_replaced_or_damaged_is_not_taken_for_the_right_one(tmp_path: Path) -> None:
    save(tmp_path / "base", numbers(1))
    changed = numbers(1)
    changed["w"][3] += 1
    save(tmp_path / "next", changed, base=tmp_path / "base")
    shutil.copytree(tmp_path / "base", tmp_path / "kept")
    container = next((tmp_path / "base").glob("*.mckp"))
    content = container.read_bytes()
    half = len(content) // 2
    container.write_bytes(content[:half] + bytes(100) + content[half + 100 :])
    with pytest.raises(BaseException) as caught:
        load(tmp_path / "next", blank(changed))
    assert "w" in refused(caught.value)
    # The manifest of the right one with the container of another.
    save(tmp_path / "other", numbers(9))
    shutil.copy(next((tmp_path / "other").glob("*.mckp")), container)
    with pytest.raises(BaseException, match=r"base|digest|other"):
        load(tmp_path / "next", blank(changed))
    shutil.rmtree(tmp_path / "base")
    (tmp_path / "kept").rename(tmp_path / "base")
    check_equal(load(tmp_path / "next", blank(changed)), changed)


# `latest` and retention


def test_retention_keeps_everything_while_a_checkpoint_cannot_be_read(tmp_path: Path) -> None:
    for step in range(3):
        ours.save(numbers(step), checkpoint_id=tmp_path / f"step_{step}", step=step, no_dist=True)
    (tmp_path / "step_1" / "manifest.json").write_text("{")
    with pytest.warns(UserWarning, match="nothing is removed"):
        ours.save(numbers(3), checkpoint_id=tmp_path / "step_3", step=3, keep_last=1, no_dist=True)
    assert (tmp_path / "step_0" / "manifest.json").exists() and ours.latest(tmp_path) == tmp_path / "step_3"


def test_retention_that_would_keep_nothing_is_refused_before_saving(tmp_path: Path) -> None:
    for call in (ours.save, ours.async_save):
        with pytest.raises(ValueError, match="keep_last"):
            call(numbers(), checkpoint_id=tmp_path / "one", keep_last=0, no_dist=True)
    assert not (tmp_path / "one").exists()


def test_of_saves_that_end_in_another_order_the_last_one_started_is_latest(tmp_path: Path) -> None:
    places = [tmp_path / "step_1", tmp_path / "step_2"]
    for path in places:
        save(path, numbers())
    numbers_drawn = [_latest.next_sequence(Place(tmp_path)) for _ in places]
    for path, number in reversed(list(zip(places, numbers_drawn, strict=True))):
        _latest.move(Place(path), None, number)
    assert ours.latest(tmp_path) == places[1]


def test_latest_that_names_nothing_whole_falls_back_to_the_highest_step(tmp_path: Path) -> None:
    for step in (2, 10):
        ours.save(numbers(), checkpoint_id=tmp_path / f"step_{step}", no_dist=True)
    for wrong in ("step_11", "../elsewhere", ".", ""):
        (tmp_path / "latest").write_text(wrong)
        assert ours.latest(tmp_path) == tmp_path / "step_10"
    (tmp_path / "step_10" / "manifest.json").unlink()
    assert ours.latest(tmp_path) == tmp_path / "step_2"


def test_checkpoints_without_a_sequence_follow_the_file_that_names_one(tmp_path: Path) -> None:
    for step in range(3):
        ours.save(numbers(), checkpoint_id=tmp_path / f"step_{step}", step=step, no_dist=True)
        manifest = _manifest.read(tmp_path / f"step_{step}")
        body = asdict(manifest)
        # As they were written before there were numbers; and by a version that has fields which this one does not know.
        del body["sequence"]
        body["later"] = step
        (tmp_path / f"step_{step}" / "manifest.json").write_bytes(sealed(body, "mithril distributed checkpoint", 1))
    (tmp_path / "latest").write_text("step_1")
    assert ours.latest(tmp_path) == tmp_path / "step_1"
    (tmp_path / "latest").unlink()
    assert ours.latest(tmp_path) == tmp_path / "step_2"
    ours.save(numbers(), checkpoint_id=tmp_path / "again_1", step=1, no_dist=True)
    assert ours.latest(tmp_path) == tmp_path / "again_1", "the save that began last, whatever its step"


def test_a_run_that_goes_back_and_overwrites_is_the_latest(tmp_path: Path) -> None:
    for step in range(4):
        ours.save(numbers(step), checkpoint_id=tmp_path / f"step_{step}", step=step, no_dist=True)
    # As a process that has not asked for the latest, and knows nothing of the root.
    _latest._given.clear()
    _latest._moved.clear()
    ours.save(numbers(9), checkpoint_id=tmp_path / "step_2", step=2, overwrite=True, no_dist=True)
    assert ours.latest(tmp_path) == tmp_path / "step_2"
    check_equal(load(ours.latest(tmp_path), blank(numbers())), numbers(9))


def test_a_latest_that_cannot_be_read_is_not_passed_over(tmp_path: Path) -> None:
    for step in range(3):
        ours.save(numbers(step), checkpoint_id=tmp_path / f"step_{step}", step=step, no_dist=True)
    damaged = tmp_path / "step_2" / "manifest.json"
    damaged.write_text(damaged.read_text().replace('"version":1', '"version":9'))
    with pytest.raises(BaseException, match="version 9"):
        load(ours.latest(tmp_path), blank(numbers()))
    (tmp_path / "latest").write_text("step_1")
    with pytest.warns(UserWarning, match="step_2"):
        assert ours.latest(tmp_path) == tmp_path / "step_1"


def test_the_latest_is_found_without_reading_every_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(6):
        ours.save(numbers(step), checkpoint_id=tmp_path / f"step_{step}", step=step, no_dist=True)
    # Killed before it could move the file that names the latest, and one that never got a manifest.
    (tmp_path / "latest").write_text("step_3")
    (tmp_path / "step_9").mkdir()
    _latest.mark(Place(tmp_path / "step_9"), 99)
    read = []
    read_manifest = _manifest.read

    def reading(place: Any, *arguments: Any) -> Any:
        read.append(Place(place).name)
        return read_manifest(place, *arguments)

    monkeypatch.setattr(_manifest, "read", reading)
    assert ours.latest(tmp_path) == tmp_path / "step_5"
    assert read == ["step_3", "step_5"]
    # A mark that a killed save left is not believed.
    _latest.mark(Place(tmp_path / "step_1"), 77)
    read.clear()
    assert ours.latest(tmp_path) == tmp_path / "step_5"
    assert read == ["step_3", "step_1", "step_5"]
    # Of an earlier version, whose saves have no marks.
    for mark in (tmp_path / "step_2").glob("sequence-*"):
        mark.unlink()
    read.clear()
    assert ours.latest(tmp_path) == tmp_path / "step_5"
    assert sorted(read) == ["step_1", "step_2", "step_3", "step_5"]
    # Overwritten, a checkpoint has the mark of its newest save alone.
    ours.save(numbers(9), checkpoint_id=tmp_path / "step_1", step=1, overwrite=True, no_dist=True)
    assert len(list((tmp_path / "step_1").glob("sequence-*"))) == 1
    assert ours.latest(tmp_path) == tmp_path / "step_1"


def test_a_checkpoint_may_be_called_latest(tmp_path: Path) -> None:
    save(tmp_path / "latest", numbers())
    assert ours.latest(tmp_path) == tmp_path / "latest"


# In the background


def test_a_tensor_that_is_changed_during_a_save_in_the_background_is_saved_as_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    contents = {"w": torch.randn(512, 512), "steps": 1}
    before = contents["w"].clone()
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            contents["w"].add_(1.0)

    as_one_rank(monkeypatch)
    torch.distributed.init_process_group("gloo")
    try:
        future = ours.async_save(contents, checkpoint_id=tmp_path / "one")
        future.staging_completion.result(timeout=60)
        changing = threading.Thread(target=change)
        changing.start()
        future.result(timeout=120)
    finally:
        stop.set()
        changing.join()
        torch.distributed.destroy_process_group()
    assert not torch.equal(contents["w"], before)
    check_equal(load(tmp_path / "one", {"w": torch.zeros(512, 512), "steps": None}), {"w": before, "steps": 1})


def test_a_save_in_the_background_that_fails_says_so_and_moves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    as_one_rank(monkeypatch)
    torch.distributed.init_process_group("gloo")
    try:
        ours.async_save(numbers(), checkpoint_id=tmp_path / "one").result(timeout=120)
        with pytest.raises(BaseException, match="already"):
            ours.async_save(numbers(2), checkpoint_id=tmp_path / "one").result(timeout=120)
        with pytest.raises(BaseException, match="no checkpoint"):
            ours.async_save(numbers(2), checkpoint_id=tmp_path / "two", base=tmp_path / "nowhere").result(timeout=120)
    finally:
        torch.distributed.destroy_process_group()
    assert ours.latest(tmp_path) == tmp_path / "one"
    check_equal(load(tmp_path / "one", blank(numbers())), numbers())


def test_deltas_are_smaller_by_what_did_not_change(tmp_path: Path) -> None:
    contents = numbers(rows=1024)
    save(tmp_path / "a", contents)
    contents["w"][:10] += 1
    save(tmp_path / "b", contents, base=tmp_path / "a")
    assert size_of(tmp_path / "b") < size_of(tmp_path / "a") / 20


# Memory, and what stays behind

MEASURE = """
import sys, warnings
import torch
import torch.distributed.checkpoint as dcp
from mithril.checkpoint.torch import MithrilStorageWriter, _writer

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10

warnings.simplefilter("ignore")
directory, is_contiguous = sys.argv[1], sys.argv[2] == "contiguous"
_writer.COPIES_SIZE = 64 << 20
dcp.save({"w": torch.randn(64, 64)}, storage_writer=MithrilStorageWriter(directory + "/first"))
tensors = [torch.randn(1024, 4096) for _ in range(24)]
state = {f"w{number}": tensor if is_contiguous else tensor.t() for number, tensor in enumerate(tensors)}
before = peak()
dcp.save(state, storage_writer=MithrilStorageWriter(directory + "/second"))
print((peak() - before) >> 20)
"""


@pytest.mark.parametrize(("layout", "n_containers"), [("contiguous", 1), ("transposed", 6)])
def test_a_save_holds_no_copy_of_the_state(tmp_path: Path, layout: str, n_containers: int) -> None:
    """384 MiB: read where they are, or, where they have to be copied, 64 MiB of them at a time."""
    command = [sys.executable, "-c", MEASURE, str(tmp_path), layout]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 160, f"{done.stdout} MiB"
    containers = list((tmp_path / "second").glob("*.mckp"))
    assert len(containers) == n_containers
    loaded = load(tmp_path / "second", {"w23": torch.zeros(1024, 4096) if n_containers == 1 else torch.zeros(4096, 1024)})
    assert loaded["w23"].any()


KILLED = """
import os, sys, warnings
import torch
import torch.distributed.checkpoint as dcp
from mithril.checkpoint.torch import MithrilStorageWriter

class Killed(MithrilStorageWriter):
    def finish(self, metadata, results):
        os.kill(os.getpid(), 9)

warnings.simplefilter("ignore")
dcp.save({"w": torch.ones(1000)}, storage_writer=Killed(sys.argv[1], overwrite=True))
"""


def test_what_killed_saves_leave_is_removed_and_nothing_else(tmp_path: Path) -> None:
    save(tmp_path / "whole", numbers(1))
    save(tmp_path / "delta", numbers(1), base=tmp_path / "whole")
    save(tmp_path / "again", numbers(2))
    for name in ("again", "torn"):
        done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / name)], capture_output=True, check=False)
        assert done.returncode == -9
    # As a kill in the middle of a container leaves it.
    temporary = tmp_path / "torn" / ".r00001-0123456789abcdef.mckp.0123456789abcdef0123456789abcdef.tmp"
    temporary.write_bytes(bytes(5000))
    others = [tmp_path / "torn" / "notes.txt", tmp_path / "again" / "model.mckp", tmp_path / "r00000-0123456789abcdef.txt"]
    for path in others:
        path.write_text("not ours")

    left = {str(temporary), *(str(path) for path in (tmp_path / "torn").glob("r*.mckp"))}
    kept = json.loads((tmp_path / "again" / "manifest.json").read_text())["body"]["files"]
    left |= {str(path) for path in (tmp_path / "again").glob("r*.mckp") if path.name not in kept}
    assert len(left) == 3
    young = ours.clean(tmp_path)
    assert not young.removed and set(young.too_young) == left, "a save that is at work has such files too"
    assert set(ours.clean(tmp_path, min_age=0, dry_run=True).removed) == left and temporary.exists()

    found = ours.clean(tmp_path, min_age=0)
    assert set(found.removed) == left and found.removed_size > 5000 and not found.too_young
    assert all(path.exists() for path in others) and not temporary.exists()
    check_equal(load(tmp_path / "again", blank(numbers())), numbers(2))
    check_equal(load(tmp_path / "delta", blank(numbers())), numbers(1))
    assert not ours.clean(tmp_path, min_age=0).removed

    # A directory that has nothing else goes as well; a manifest that cannot be read protects what is beside it.
    others[0].unlink()
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "torn")], capture_output=True, check=False)
    (tmp_path / "delta" / "manifest.json").write_text("{")
    with pytest.warns(UserWarning, match="delta"):
        ours.clean(tmp_path, min_age=0)
    assert not (tmp_path / "torn").exists() and list((tmp_path / "delta").glob("r*.mckp"))
    with pytest.raises(mithril.NotFoundError, match="nowhere"):
        ours.clean(tmp_path / "nowhere")
