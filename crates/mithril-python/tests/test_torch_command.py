"""`mithril dcp`: checkpoints to mithril's storage and back, as a user runs it."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from test_torch_checkpoint import Opaque, blank, check_equal, load, save, state
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter

import mithril
from mithril.checkpoint import torch as ours
from mithril.checkpoint.torch import _convert, _extension, _source

pytestmark = pytest.mark.filterwarnings("ignore")


def run(*arguments: object, code: int = 0) -> str:
    command = [sys.executable, "-W", "ignore", "-m", "mithril", "dcp", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def stock_load(path: Path, contents: Any) -> Any:
    dcp.load(contents, storage_reader=FileSystemReader(path))
    return contents


def test_there_and_back_through_torchs_own_storage(tmp_path: Path) -> None:
    save(tmp_path / "ours", state())
    report = json.loads(run("unpack", tmp_path / "ours", tmp_path / "stock", "--json"))
    assert report["tensors"] == 8 and report["written_size"] > 0
    check_equal(stock_load(tmp_path / "stock", blank(state())), state())
    text = run("pack", tmp_path / "stock", tmp_path / "again", "--step", 5)
    assert "8 tensors" in text
    check_equal(load(tmp_path / "again", blank(state())), state())
    # Another step as what changed since.
    changed = state()
    changed["model"]["flat"][3] += 1
    dcp.save(changed, storage_writer=FileSystemWriter(tmp_path / "stock2"))
    run("pack", tmp_path / "stock2", tmp_path / "delta", "--base", tmp_path / "again")
    check_equal(load(tmp_path / "delta", blank(state())), changed)
    assert len(json.loads((tmp_path / "delta" / "manifest.json").read_text())["body"]["base"]) > 0


def test_what_planner_and_extension_wrote_is_unpacked(tmp_path: Path) -> None:
    planner = ours.MithrilSavePlanner()
    dcp.save(state(), storage_writer=FileSystemWriter(tmp_path / "p"), planner=planner)
    names = ["p"]
    if _extension.AVAILABLE:
        writer = FileSystemWriter(tmp_path / "x", _extensions=[ours.MithrilExtension()])
        dcp.save(state(), storage_writer=writer)
        names.append("x")
    for name in names:
        run("unpack", tmp_path / name, tmp_path / f"{name}-stock")
        check_equal(stock_load(tmp_path / f"{name}-stock", blank(state())), state())


@pytest.mark.parametrize("to", ["unpack", "to_safetensors"])
def test_what_a_kill_leaves_is_known_and_a_failure_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    save(tmp_path / "ours", state())
    left: list[str] = []

    def damaged(_self: Any, _index: Any) -> None:
        left.extend(found.name for found in tmp_path.iterdir() if found.name not in ("ours", "out"))
        assert not (tmp_path / "out").exists()
        raise mithril.CorruptError("damaged")

    monkeypatch.setattr(_source.Source, "chunk", damaged)
    with _source.open_source(tmp_path / "ours") as source, pytest.raises(mithril.CorruptError):
        getattr(_convert, to)(source, tmp_path / "out")
    assert len(left) == 1 and re.fullmatch(r"\.out\.[0-9a-f]{32}\.tmp", left[0])
    assert [found.name for found in tmp_path.iterdir()] == ["ours"]


def test_safetensors_hold_the_tensors(tmp_path: Path) -> None:
    contents = state()
    save(tmp_path / "ours", contents)
    output = tmp_path / "model.safetensors"
    told = run("unpack", tmp_path / "ours", output, "--to", "safetensors", "--prefix", "model.")
    assert "left out" in told
    check_equal(dict(load_file(output)), dict(sorted(contents["model"].items())))
    assert "there already" in run("unpack", tmp_path / "ours", output, "--to", "safetensors", code=1)
    assert "starts with" in run("unpack", tmp_path / "ours", tmp_path / "no", "--to", "safetensors", "--prefix", "x", code=1)


def test_wrong_input_is_named(tmp_path: Path) -> None:
    assert "examples:" in run("--help") and "examples:" in run("pack", "--help")
    assert "no checkpoint" in run("unpack", tmp_path / "nowhere", tmp_path / "out", code=1)
    (tmp_path / "empty").mkdir()
    assert "no finished checkpoint" in run("pack", tmp_path / "empty", tmp_path / "out", code=1)
    assert "--prefix" in run("unpack", tmp_path / "empty", tmp_path / "out", "--prefix", "x", code=2)
    save(tmp_path / "ours", {"w": torch.ones(3)})
    assert "not empty" in run("unpack", tmp_path / "ours", tmp_path / "ours", code=1)
    assert "overwrite" in run("pack", tmp_path / "ours", tmp_path / "ours", code=1)
    assert not (tmp_path / "out").exists()


def test_damage_leaves_nothing_behind(tmp_path: Path) -> None:
    save(tmp_path / "ours", {"w": torch.ones(3000)})
    (container,) = (tmp_path / "ours").glob("*.mckp")
    container.write_bytes(container.read_bytes()[:-100])
    for to in ("dcp", "safetensors"):
        said = run("unpack", tmp_path / "ours", tmp_path / "out", "--to", to, code=1)
        assert "was saved with" in said and "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_pickles_of_others_run_only_when_trusted(tmp_path: Path) -> None:
    contents = {"w": torch.ones(3), "thing": Opaque()}
    dcp.save(contents, storage_writer=FileSystemWriter(tmp_path / "stock"))
    assert "trusted" in run("pack", tmp_path / "stock", tmp_path / "ours", code=1)
    # Metadata that would run something when it is unpickled.
    (tmp_path / "stock" / ".metadata").write_bytes(b"cos\nmkdir\n(V" + str(tmp_path / "ran").encode() + b"\ntR.")
    assert "posix.mkdir" in run("pack", tmp_path / "stock", tmp_path / "ours", code=1).replace("os.mkdir", "posix.mkdir")
    assert not (tmp_path / "ran").exists()


def test_clean_says_what_goes_and_removes_it(tmp_path: Path) -> None:
    def cleaned(*arguments: object) -> Any:
        return json.loads(run("clean", *arguments, "--json"))

    save(tmp_path / "one", state())
    left = tmp_path / "one" / "r00003-0123456789abcdef.mckp"
    left.write_bytes(bytes(1234))
    assert cleaned(tmp_path)["too_young"] == [str(left)]
    assert cleaned(tmp_path, "--min-age", "0", "--dry-run")["removed"] == [str(left)] and left.exists()
    report = cleaned(tmp_path / "one", "--min-age", "0")
    assert report["removed"] == [str(left)] and report["removed_size"] == 1234 and not left.exists()
    check_equal(load(tmp_path / "one", blank(state())), state())
