"""What a checkpoint is stored against is not removed or replaced, also while it is being saved."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from test_torch_checkpoint import blank, check_equal, load, save

import mithril
from mithril.checkpoint import _claims, _manifest
from mithril.checkpoint import torch as ours
from mithril.checkpoint._place import Place
from mithril.checkpoint.torch import _latest

pytestmark = pytest.mark.filterwarnings("ignore")


def numbers(seed: int = 1) -> dict[str, torch.Tensor]:
    return {"w": torch.randn(64, 64, generator=torch.Generator().manual_seed(seed))}


def run_of(root: Path, n: int) -> None:
    for step in range(n):
        ours.save(numbers(step), checkpoint_id=root / f"step_{step}", step=step, no_dist=True)


def before(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, action: Any) -> None:
    """What another process does at the very moment at which a function is called first; it does it once."""
    function, done = getattr(module, name), []

    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        if not done:
            done.append(True)
            action()
        return function(*arguments, **keywords)

    monkeypatch.setattr(module, name, wrapped)


@pytest.mark.parametrize("moment", ["write", "_check_base"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_save_whose_base_goes_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, moment: str, overwrite: bool
) -> None:
    run_of(tmp_path, 3)
    if overwrite:
        save(tmp_path / "next", numbers(5))
    where = _manifest if moment == "write" else _claims

    def remove() -> None:
        # Retention of another process, which saw this save's manifest neither when it looked first nor after its mark.
        _claims.mark(Place(tmp_path / "step_0"))
        Place(tmp_path / "step_0").remove(first="manifest.json")

    with monkeypatch.context() as patched:
        before(patched, where, moment, remove)
        with pytest.raises(BaseException, match="was removed or replaced while"):
            save(tmp_path / "next", numbers(4), base=tmp_path / "step_0", overwrite=overwrite)
    if overwrite:
        check_equal(load(tmp_path / "next", blank(numbers())), numbers(5))
        assert not list((tmp_path / "next").glob("removing*"))
    else:
        assert not (tmp_path / "next" / "manifest.json").exists()


def test_a_save_whose_base_is_marked_gives_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run_of(tmp_path, 2)
    with monkeypatch.context() as patched:
        before(patched, _manifest, "write", lambda: _claims.mark(Place(tmp_path / "step_0")))
        with pytest.raises(BaseException, match=r"being removed or replaced.*removing"):
            save(tmp_path / "next", numbers(4), base=tmp_path / "step_0")
    assert not (tmp_path / "next" / "manifest.json").exists()
    # A mark that a kill has left goes with what else is old.
    marks = list((tmp_path / "step_0").glob("removing-*"))
    removed = ours.clean(tmp_path, min_age=0).removed
    assert len(marks) == 1 and [path for path in removed if "removing" in path] == [str(marks[0])]
    save(tmp_path / "next", numbers(4), base=tmp_path / "step_0")
    check_equal(load(tmp_path / "next", blank(numbers())), numbers(4))


@pytest.mark.parametrize("moment", ["mark", "unmark"])
def test_retention_leaves_the_base_of_a_save_that_ends_meanwhile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, moment: str
) -> None:
    run_of(tmp_path, 4)
    failures: list[BaseException] = []

    def save_against_it() -> None:
        try:
            save(tmp_path / "next", numbers(9), base=tmp_path / "step_0")
        except BaseException as error:
            failures.append(error)

    with monkeypatch.context() as patched:
        if moment == "mark":
            before(patched, _claims, "mark", save_against_it)
        else:
            # After the marks, before the second look.
            look, calls = _latest.finished, []

            def finished(directory: Place) -> Any:
                calls.append(directory)
                if len(calls) == 2:
                    save_against_it()
                return look(directory)

            patched.setattr(_latest, "finished", finished)
        ours.save(numbers(4), checkpoint_id=tmp_path / "step_4", step=4, keep_last=1, no_dist=True)
    if moment == "mark":
        assert not failures
        check_equal(load(tmp_path / "next", blank(numbers())), numbers(9))
        assert (tmp_path / "step_0" / "manifest.json").exists() and not list((tmp_path / "step_0").glob("removing*"))
    else:
        assert len(failures) == 1 and not (tmp_path / "next" / "manifest.json").exists()
    assert not (tmp_path / "step_1").exists() and (tmp_path / "step_4").exists()


def test_a_removal_that_gives_way_leaves_the_mark_of_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run_of(tmp_path, 3)

    def meanwhile() -> None:
        # So that retention gives way; and a removal of another process, which has looked before and is at work.
        save(tmp_path / "next", numbers(9), base=tmp_path / "step_0")
        _claims.mark(Place(tmp_path / "step_0"))

    with monkeypatch.context() as patched:
        before(patched, _claims, "mark", meanwhile)
        ours.save(numbers(4), checkpoint_id=tmp_path / "step_4", step=4, keep_last=1, no_dist=True)
    assert (tmp_path / "step_0" / "manifest.json").exists() and not (tmp_path / "step_1").exists()
    with pytest.raises(BaseException, match="being removed or replaced"):
        save(tmp_path / "late", numbers(5), base=tmp_path / "step_0")
    assert not (tmp_path / "late" / "manifest.json").exists()


def test_retention_leaves_what_was_saved_anew_meanwhile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run_of(tmp_path, 3)

    def save_anew() -> None:
        shutil.rmtree(tmp_path / "step_0")
        save(tmp_path / "step_0", numbers(9))

    with monkeypatch.context() as patched:
        before(patched, _claims, "mark", save_anew)
        ours.save(numbers(4), checkpoint_id=tmp_path / "step_4", step=4, keep_last=1, no_dist=True)
    check_equal(load(tmp_path / "step_0", blank(numbers())), numbers(9))
    assert not list((tmp_path / "step_0").glob("removing*")) and not (tmp_path / "step_1").exists()


def test_a_save_that_is_taken_back_leaves_the_manifest_of_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run_of(tmp_path, 1)

    def overwrite_and_remove_the_base() -> None:
        save(tmp_path / "next", numbers(9), overwrite=True)
        shutil.rmtree(tmp_path / "step_0")

    with monkeypatch.context() as patched:
        before(patched, _claims, "_check_base", overwrite_and_remove_the_base)
        with pytest.raises(BaseException, match="was removed or replaced"):
            save(tmp_path / "next", numbers(4), base=tmp_path / "step_0")
    check_equal(load(tmp_path / "next", blank(numbers())), numbers(9))


def test_what_is_overwritten_is_looked_at_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run_of(tmp_path, 1)
    writer = ours.MithrilStorageWriter(tmp_path / "step_0", overwrite=True)
    with monkeypatch.context() as patched:
        before(patched, _claims, "mark", lambda: save(tmp_path / "next", numbers(0), base=tmp_path / "step_0"))
        with pytest.raises(BaseException, match="is stored against"):
            dcp.save(numbers(7), storage_writer=writer, no_dist=True)
    for path in (tmp_path / "step_0", tmp_path / "next"):
        check_equal(load(path, blank(numbers())), numbers(0))
    assert not list((tmp_path / "step_0").glob("removing*"))
    shutil.rmtree(tmp_path / "next")
    dcp.save(numbers(7), storage_writer=ours.MithrilStorageWriter(tmp_path / "step_0", overwrite=True), no_dist=True)
    check_equal(load(tmp_path / "step_0", blank(numbers())), numbers(7))
    # The refused save has left its container, as saves that fail do.
    assert len(ours.clean(tmp_path, min_age=0).removed) == 1
    assert len(list((tmp_path / "step_0").iterdir())) == 3, "a container, a manifest and the number"


def test_orbax_refuses_a_base_that_goes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    from mithril.checkpoint.orbax import MithrilCheckpointHandler, MithrilSave

    checkpointer = ocp.Checkpointer(MithrilCheckpointHandler())
    checkpointer.save(tmp_path / "base", args=MithrilSave({"w": jnp.arange(300)}))
    with monkeypatch.context() as patched:
        before(patched, _claims, "commit", lambda: shutil.rmtree(tmp_path / "base"))
        with pytest.raises(mithril.ConflictError, match="was removed or replaced"):
            checkpointer.save(tmp_path / "next", args=MithrilSave({"w": jnp.arange(300) + 1}, base=tmp_path / "base"))
    assert not (tmp_path / "next").exists()
