"""DeepSpeed's checkpoints through mithril, with the real package and real processes."""

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointCommitInfo

import mithril
from mithril.__main__ import main
from mithril.checkpoint.deepspeed import MithrilCheckpointEngine, Options, readable_by_torch, unpack

pytestmark = pytest.mark.filterwarnings("ignore")


def test_two_ranks_train_save_and_resume_at_every_stage(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Path(__file__).parent / "deepspeed_ranks.py"
    ranks = [
        subprocess.Popen(
            [sys.executable, program, str(rank), "2", str(port), tmp_path],
            cwd=tmp_path,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=600)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)
    assert all("all is well" in output for output in outputs)
    assert "[mithril] checkpoints are compressed: compression_level=3" in outputs[0]
    assert "[mithril]" not in outputs[1], "one line, not one of each rank"


def state() -> dict[str, Any]:
    flat = torch.randn(64 * 80, generator=torch.Generator().manual_seed(3)).bfloat16()
    # As DeepSpeed has them: parameters are parts of one buffer, and two names may have the same.
    weight = flat[: 64 * 64].view(64, 64)
    return {
        "module": {"a.weight": weight, "b.weight": flat[64 * 64 :].view(16, 64), "tied": weight},
        "optimizer": {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(9)}}, "param_groups": [{"lr": 1e-3}]},
        "f8": torch.randn(8, 8).to(torch.float8_e4m3fn),
        "empty": torch.empty(0, 3),
        "turned": torch.randn(4, 6).t(),
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "kind": torch.bfloat16,
        "plain": [1, 2.5, None, "text", (True, {"x"})],
    }


def check_equal(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and one.shape == other.shape and one.requires_grad == other.requires_grad
        assert one.detach().contiguous().reshape(-1).view(torch.uint8).tolist() == (
            other.detach().contiguous().reshape(-1).view(torch.uint8).tolist()
        )
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            check_equal(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        for mine, theirs in zip(one, other, strict=True):
            check_equal(mine, theirs)
    else:
        assert one == other


def saved(root: Path, tag: str, contents: Any, **options: Any) -> Path:
    engine = MithrilCheckpointEngine(options=Options(**options))
    info = CheckpointCommitInfo(tag=tag, save_dir=str(root), save_latest=True)
    engine.create(info)
    engine.makedirs(root / tag, exist_ok=True)
    engine.save(state_dict=contents, path=str(root / tag / "mp_rank_00_model_states.pt"))
    engine.commit(info)
    return root / tag / "mp_rank_00_model_states.pt"


@pytest.mark.parametrize("options", [{}, {"effort": "max"}, {"byte_grouping": False}, {"decoupled": True}])
def test_states_come_back_as_they_were(tmp_path: Path, options: dict[str, Any]) -> None:
    contents = state()
    path = saved(tmp_path, "one", contents, **options)
    loaded = MithrilCheckpointEngine().load(str(path), map_location=lambda storage, location: storage)
    check_equal(loaded, contents)
    module = loaded["module"]
    assert module["tied"].data_ptr() == module["a.weight"].data_ptr(), "stored once"
    assert module["a.weight"].untyped_storage().nbytes() == module["a.weight"].nbytes, "without what else was in the buffer"
    meta = MithrilCheckpointEngine().load(str(path), map_location="meta")
    assert meta["module"]["tied"].device.type == "meta"


def test_what_is_saved_in_the_background_is_what_it_was_then(tmp_path: Path) -> None:
    contents = state()
    engine = MithrilCheckpointEngine(options=Options(decoupled=True))
    info = CheckpointCommitInfo(tag="one", save_dir=str(tmp_path), save_latest=True)
    engine.create(info)
    (tmp_path / "one").mkdir()
    engine.save(contents, str(tmp_path / "one" / "file.pt"))
    contents["module"]["a.weight"].zero_()
    contents["optimizer"]["param_groups"][0]["lr"] = 5
    assert engine.get_commit_info() == info and engine.is_decoupled()
    engine.cleanup()
    assert engine.get_commit_info() is None and (tmp_path / "latest").read_text() == "one"
    check_equal(engine.load(str(tmp_path / "one" / "file.pt")), state_of(contents))


def state_of(changed: dict[str, Any]) -> dict[str, Any]:
    before = state()
    before.update({key: changed[key] for key in ("f8", "turned")})
    before["optimizer"]["state"] = changed["optimizer"]["state"]
    return before


def test_plain_files_are_loaded_too(tmp_path: Path) -> None:
    contents = state()
    # torch's older kind of file, which is what DeepSpeed writes, has none of these.
    del contents["f8"]
    for zipped in (True, False):
        torch.save(contents, tmp_path / "file.pt", _use_new_zipfile_serialization=zipped)
        check_equal(MithrilCheckpointEngine().load(str(tmp_path / "file.pt")), contents)
    with pytest.raises(FileNotFoundError):
        MithrilCheckpointEngine().load(str(tmp_path / "nothing.pt"))


def test_the_command_makes_plain_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: Any) -> int:
        monkeypatch.setattr(sys, "argv", ["mithril", "deepspeed", *map(str, arguments)])
        return main()

    contents = state()
    path = saved(tmp_path, "one", contents)
    (tmp_path / "one" / "note.txt").write_text("kept")
    assert run("unpack", tmp_path / "one", "--output", tmp_path / "plain") == 0
    assert "bytes" in capsys.readouterr().err
    check_equal(torch.load(tmp_path / "plain" / path.name, weights_only=False), contents)
    assert sorted(file.name for file in (tmp_path / "plain").iterdir()) == [path.name, "note.txt"]
    check_equal(MithrilCheckpointEngine().load(str(path)), contents)
    assert run("unpack", tmp_path / "one", "--output", tmp_path / "plain") == 1
    assert "exists already" in capsys.readouterr().err
    assert run("unpack", tmp_path / "one") == 0
    check_equal(torch.load(path, weights_only=False), contents)
    assert run("unpack", tmp_path / "one") == 1
    assert "no file that mithril has compressed" in capsys.readouterr().err
    assert run("unpack", tmp_path / "nowhere") == 1
    assert run("unpack") == 2 and run("fly") == 2 and run("unpack", "--help") == 0


def test_unpacking_that_fails_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, "one", state())
    temporary = re.compile(r"\.[a-z_0-9.]+\.[0-9a-f]{32}\.tmp")

    def full(_state: Any, file: Any) -> None:
        file.write(b"part")
        # What a kill would leave now.
        for directory in (tmp_path, tmp_path / "one"):
            left.extend(found for found in directory.iterdir() if found.name.startswith("."))
        raise OSError("the disk is full")

    monkeypatch.setattr(torch, "save", full)
    for output in (tmp_path / "plain", None):
        left: list[Path] = []
        with pytest.raises(OSError, match="is full"):
            unpack(tmp_path / "one", output)
        assert len(left) == 1 and all(temporary.fullmatch(found.name) for found in left)
        assert [found.name for found in tmp_path.iterdir()] == ["one"]
        assert sorted(found.name for found in (tmp_path / "one").iterdir()) == sorted([path.name, "manifest.json"])


def test_latest_is_replaced_and_not_overwritten(tmp_path: Path) -> None:
    engine = MithrilCheckpointEngine(options=Options(decoupled=True))
    opened = []
    for tag in ("one", "two"):
        info = CheckpointCommitInfo(tag=tag, save_dir=str(tmp_path), save_latest=True)
        (tmp_path / tag).mkdir()
        engine.create(info)
        engine.save(state(), str(tmp_path / tag / "file.pt"))
        engine.cleanup()
        assert (tmp_path / "latest").read_text() == tag
        opened.append((tmp_path / "latest").open("rb"))
    with opened[0] as first, opened[1]:
        assert first.read() == b"one", "who has opened it reads one or the other"


def test_newer_and_unfinished_files_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, "one", state())
    content = path.read_bytes()
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / path.name).write_bytes(content)
    with pytest.raises(mithril.NotFoundError, match="no finished checkpoint"):
        MithrilCheckpointEngine().load(str(tmp_path / "alone" / path.name))
    (tmp_path / "one" / "other.pt").write_bytes(content)
    with pytest.raises(mithril.NotFoundError, match="not part of the checkpoint"):
        unpack(tmp_path / "one", tmp_path / "plain")
    manifest = tmp_path / "one" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version":1', '"version":2'))
    with pytest.raises(mithril.UnsupportedError, match="version 2"):
        MithrilCheckpointEngine().load(str(path))


def test_a_missing_file_of_a_rank_is_named(tmp_path: Path) -> None:
    path = saved(tmp_path, "one", state())
    path.unlink()
    with pytest.raises(mithril.NotFoundError, match=r"not whole: `mp_rank_00_model_states.pt` is missing"):
        MithrilCheckpointEngine().load(str(path))


def test_every_number_comes_back_also_as_what_changed(tmp_path: Path) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45] * 100)
    engine = MithrilCheckpointEngine(options=Options(delta_enabled=True))
    for number in range(2):
        contents = {"every": every.roll(number), "special": special.roll(number)}
        info = CheckpointCommitInfo(tag=str(number), save_dir=str(tmp_path), save_latest=True)
        engine.create(info)
        engine.makedirs(tmp_path / str(number), exist_ok=True)
        engine.save(contents, str(tmp_path / str(number) / "file.pt"))
        engine.commit(info)
        check_equal(MithrilCheckpointEngine().load(str(tmp_path / str(number) / "file.pt")), contents)
    assert json.loads((tmp_path / "1" / "manifest.json").read_text())["body"]["base"] == "../0"


def test_files_of_ranks_that_the_base_does_not_have_are_stored_whole(tmp_path: Path) -> None:
    """As when there are more ranks than before, or others."""
    engine = MithrilCheckpointEngine(options=Options(delta_enabled=True))
    sizes = []
    for tag, ranks in (("one", (0, 1)), ("two", (0, 1, 2)), ("three", (2,))):
        info = CheckpointCommitInfo(tag=tag, save_dir=str(tmp_path), save_latest=True)
        engine.create(info)
        engine.makedirs(tmp_path / tag, exist_ok=True)
        for rank in ranks:
            engine.save(numbers_of(rank), str(tmp_path / tag / f"rank{rank}.pt"))
        engine.commit(info)
        for rank in ranks:
            check_equal(MithrilCheckpointEngine().load(str(tmp_path / tag / f"rank{rank}.pt")), numbers_of(rank))
        sizes.append([(tmp_path / tag / f"rank{rank}.pt").stat().st_size for rank in ranks])
    whole = sizes[0][0]
    assert max(sizes[1][:2]) < whole / 10 and min(sizes[1][2], *sizes[2]) > whole * 0.9, sizes


def test_a_tag_that_is_used_again_leaves_what_others_are_stored_against(tmp_path: Path) -> None:
    def numbers(step: int) -> dict[str, Any]:
        return {"w": numbers_of(0)["w"] * (1 + step * 1e-6)}

    def save(tag: str, contents: Any) -> None:
        info = CheckpointCommitInfo(tag=tag, save_dir=str(tmp_path), save_latest=True)
        engine.create(info)
        engine.makedirs(tmp_path / tag, exist_ok=True)
        engine.save(contents, str(tmp_path / tag / "file.pt"))
        engine.commit(info)

    def check(tag: str, step: int) -> None:
        check_equal(MithrilCheckpointEngine().load(str(tmp_path / tag / "file.pt")), numbers(step))

    engine = MithrilCheckpointEngine(options=Options(delta_enabled=True))
    for step, tag in enumerate(("best", "one", "two", "best", "three", "best")):
        save(tag, numbers(step))
    bodies = {path.parent.name: json.loads(path.read_text())["body"] for path in tmp_path.glob("*/manifest.json")}
    first = f"best.base-{bodies['one']['base_generation']}"
    assert bodies["one"]["base"] == bodies["two"]["base"] == f"../{first}"
    for tag, step in (("one", 1), ("two", 2), ("three", 4), ("best", 5), (first, 0)):
        check(tag, step)
    # Damaged, nobody needs it, and the tag can still be used.
    (tmp_path / "best" / "manifest.json").write_text("{")
    save("best", numbers(6))
    check("best", 6)
    check("two", 2)


def test_a_tag_that_nobody_needs_is_written_anew_in_its_place(tmp_path: Path) -> None:
    for step in range(3):
        path = saved(tmp_path, "one", numbers_of(step), delta_enabled=True)
        check_equal(MithrilCheckpointEngine().load(str(path)), numbers_of(step))
    assert [file.name for file in tmp_path.iterdir()] == ["one"]


def numbers_of(rank: int) -> dict[str, Any]:
    return {"w": torch.randn(20_000, generator=torch.Generator().manual_seed(rank))}


def test_pickles_are_run_only_if_trusted(tmp_path: Path) -> None:
    path = saved(tmp_path, "one", {"scaler": slice(1, 2)})
    assert MithrilCheckpointEngine().load(str(path)) == {"scaler": slice(1, 2)}
    with pytest.raises(TypeError, match="trusted=True"):
        MithrilCheckpointEngine(options=Options(trusted=False)).load(str(path))
    with pytest.raises(mithril.MithrilError, match=r"`two` is not saved: rank 0: TypeError: `scaler` is a"):
        saved(tmp_path, "two", {"scaler": slice(1, 2)}, trusted=False)


def test_torch_reads_compressed_files_while_it_is_asked_to(tmp_path: Path) -> None:
    contents = state()
    path = saved(tmp_path, "one", contents)
    torch.save({"a": 1}, tmp_path / "plain.pt")
    with readable_by_torch():
        check_equal(torch.load(path, map_location="cpu", mmap=True, weights_only=False), contents)
        check_equal(torch.load(str(path)), contents)
        assert torch.load(tmp_path / "plain.pt") == {"a": 1}
        odd = saved(tmp_path, "two", {"scaler": slice(1, 2)})
        assert torch.load(odd, weights_only=False) == {"scaler": slice(1, 2)}
        with pytest.raises(TypeError, match="trusted"):
            torch.load(odd)
    with pytest.raises(Exception, match="load"):
        torch.load(path)
