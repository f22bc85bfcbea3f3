"""Run by test_deepspeed.py, once for each rank: DeepSpeed trains, saves through mithril, and goes on from what was saved."""

import contextlib
import io
import os
import re
import shutil
import sys
import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")

import deepspeed  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint  # noqa: E402
from leaving import leave  # noqa: E402

import mithril  # noqa: E402
from mithril.checkpoint import deepspeed as ours  # noqa: E402

HIDDEN = 96


def config(stage: int, **checkpoint: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "checkpoint": checkpoint,
    }
    if stage:
        made["bf16"] = {"enabled": True}
    if stage == 3:
        made["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    return made


def engine_of(stage: int, **checkpoint: Any) -> Any:
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return ours.initialize(model=model, optimizer=optimizer, config=config(stage, **checkpoint))[0]


def train(engine: Any, steps: range) -> list[bytes]:
    losses = []
    for step in steps:
        batch = torch.randn(2, HIDDEN, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))
        loss = engine(batch.to(next(engine.module.parameters()).dtype)).float().square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.detach().numpy().tobytes())
    return losses


def check_equal(one: Any, other: Any, path: str = "") -> None:
    assert type(one) is type(other), (path, type(one), type(other))
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and one.shape == other.shape, path
        flat, theirs = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
        assert torch.equal(flat, theirs), path
    elif isinstance(one, dict):
        assert list(one) == list(other), path
        for key in one:
            check_equal(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), path
        for number, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            check_equal(mine, theirs, f"{path}/{number}")
    elif hasattr(one, "__dict__") and type(one).__module__.startswith("deepspeed"):
        check_equal(vars(one), vars(other), path)
    else:
        assert one == other, path


def size_of(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("*.pt"))


def on_first(action: Any) -> None:
    if dist.get_rank() == 0:
        action()
    dist.barrier()


def one_stage(directory: Path, stage: int) -> None:
    """Saved at step 2, resumed: the same losses as without a break, whichever way it was saved."""
    plain = engine_of(stage)
    assert type(plain.checkpoint_engine).__name__ == "TorchCheckpointEngine", "without the block nothing changes"
    train(plain, range(2))
    client = {"epoch": 3, "note": ("a", 1.5), "space": Namespace(lr=0.1), "extra": torch.arange(5)}
    plain.save_checkpoint(str(directory / "stock"), client_state=client)
    plain_losses = train(plain, range(2, 4))
    for way in ("sync", "decoupled", "bytes"):
        options = {"compression_level": 3, "decoupled": way == "decoupled", "byte_grouping": way != "bytes"}
        engine = engine_of(stage, use_mithril=True, mithril_config=options)
        assert isinstance(engine.checkpoint_engine, ours.MithrilCheckpointEngine)
        train(engine, range(2))
        engine.save_checkpoint(str(directory / way), client_state=client)
        latest = directory / way / "latest"
        assert latest.exists() == (way != "decoupled"), "committed at the next step"
        losses = train(engine, range(2, 4))
        assert losses == plain_losses, "saving changes nothing"
        assert latest.read_text() == "global_step2"
        for tag, place in (("ours", directory / way), ("plain files", directory / "stock")):
            other = engine_of(stage, use_mithril=True, mithril_config=options)
            loaded, state = other.load_checkpoint(str(place))
            assert loaded is not None and state["epoch"] == 3 and state["note"] == ("a", 1.5), tag
            assert state["space"].lr == 0.1 and state["extra"].tolist() == [0, 1, 2, 3, 4]
            assert train(other, range(2, 4)) == plain_losses, (stage, way, tag)
            other.destroy()
        engine.destroy()
    on_first(lambda: unpacked(directory, stage))


def without_config(state: dict[str, Any]) -> dict[str, Any]:
    """The configuration is part of the state, and is another one where mithril is on."""
    return {key: value for key, value in state.items() if key != "ds_config"}


def unpacked(directory: Path, stage: int) -> None:
    """Plain files again: equal to those that DeepSpeed writes, and read by its tools."""
    tag = "global_step2"
    stock = directory / "stock" / tag
    assert size_of(directory / "sync" / tag) < 0.9 * size_of(stock), "smaller"
    shutil.copytree(directory / "sync", directory / "unpacked")
    files = ours.unpack(directory / "unpacked" / tag)
    assert len(files) == len(list(stock.glob("*.pt")))
    for file in files:
        theirs = without_config(torch.load(stock / file.name, weights_only=False))
        check_equal(without_config(torch.load(file, weights_only=False)), theirs, file.name)
        for way in ("decoupled", "bytes"):
            loaded = ours.MithrilCheckpointEngine().load(str(directory / way / tag / file.name))
            check_equal(without_config(loaded), theirs, file.name)
    assert not (directory / "unpacked" / tag / "manifest.json").exists()
    if stage:
        with contextlib.redirect_stdout(io.StringIO()):
            weights = get_fp32_state_dict_from_zero_checkpoint(str(directory / "unpacked"))
            check_equal(dict(weights), dict(get_fp32_state_dict_from_zero_checkpoint(str(directory / "stock"))))
            with ours.readable_by_torch():
                check_equal(dict(weights), dict(get_fp32_state_dict_from_zero_checkpoint(str(directory / "sync"))))


def weights_only(directory: Path) -> None:
    """DeepSpeed reads the files itself where it gathers the weights of stage 3 without the optimizer's state."""
    first = engine_of(3, use_mithril=True)
    first.load_checkpoint(str(directory / "3" / "stock"), load_optimizer_states=False)
    other = engine_of(3, use_mithril=True)
    with ours.readable_by_torch(), contextlib.redirect_stdout(io.StringIO()):
        other.load_checkpoint(str(directory / "3" / "sync"), load_optimizer_states=False)
    assert train(other, range(2, 4)) == train(first, range(2, 4))


def universal(directory: Path) -> None:
    """What was unpacked is made a universal checkpoint by DeepSpeed's tool, and loaded at another stage."""
    from deepspeed.checkpoint import ds_to_universal

    source = directory / "1" / "unpacked"

    def convert() -> None:
        arguments = ["--input_folder", str(source / "global_step2"), "--output_folder", str(source / "universal")]
        arguments += ["--num_extract_workers", "1", "--num_merge_workers", "1", "--inject_missing_state"]
        before, sys.argv = sys.argv, ["ds_to_universal", *arguments]
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                ds_to_universal.main(ds_to_universal.parse_arguments())
        finally:
            sys.argv = before

    on_first(convert)
    engine = engine_of(1, use_mithril=True, load_universal=True)
    loaded, state = engine.load_checkpoint(str(source), tag="universal")
    assert loaded is not None and state["epoch"] == 3
    continued = train(engine, range(2, 4))
    other = engine_of(1, use_mithril=True)
    other.load_checkpoint(str(directory / "1" / "sync"))
    assert train(other, range(2, 4)) == continued


def deltas(directory: Path) -> None:
    """Checkpoints against the last whole one: small, resumed from after a restart, and refused without their base."""
    options = {"delta_enabled": True, "max_since_whole": 2}
    engine = engine_of(2, use_mithril=True, mithril_config=options)
    losses: list[bytes] = []
    for step in range(5):
        losses += train(engine, range(step, step + 1))
        engine.save_checkpoint(str(directory))
    sizes = [size_of(directory / f"global_step{step}") for step in range(1, 6)]
    assert max(sizes[1], sizes[2]) < 0.95 * sizes[0] and sizes[3] > 0.95 * sizes[0] and sizes[4] < 0.95 * sizes[3], sizes
    engine.save_checkpoint(str(directory), tag="global_step4")  # the base of what was saved last is not its own base
    other = engine_of(2, use_mithril=True, mithril_config=options)
    other.load_checkpoint(str(directory), tag="global_step3")
    assert train(other, range(3, 5)) == losses[3:]
    other.load_checkpoint(str(directory), tag="global_step3")
    other.save_checkpoint(str(directory), tag="restarted")
    assert size_of(directory / "restarted") > 0.95 * sizes[0], "two others were stored against that base"
    other.load_checkpoint(str(directory), tag="global_step5")  # its base was kept when that tag was used again
    assert train(other, range(5, 6)) == train(engine, range(5, 6))
    on_first(lambda: in_place_is_refused(directory))
    on_first(lambda: shutil.rmtree(directory / "global_step1"))
    refused_by_all(
        mithril.NotFoundError, "stored against another", lambda: other.load_checkpoint(str(directory), tag="global_step3")
    )


def in_place_is_refused(directory: Path) -> None:
    refused(mithril.ConflictError, "is stored against", lambda: ours.unpack(directory / "global_step1"))
    files = ours.unpack(directory / "global_step3", directory / "plain3")
    assert torch.load(files[0], weights_only=False)


def refused(kind: type[BaseException], text: str, action: Any) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        action()


def refused_by_all(kind: type[BaseException], text: str, action: Any) -> None:
    refused(kind, text, action)
    dist.barrier()


def failures(directory: Path) -> None:
    engine = engine_of(1, use_mithril=True)
    train(engine, range(1))
    engine.save_checkpoint(str(directory))
    # The last rank cannot write: all are told, and what was saved before stays the latest.
    blocked = directory / "blocked" / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    on_first(lambda: (blocked / "not empty").mkdir(parents=True))
    refused_by_all(
        mithril.MithrilError, "`blocked` is not saved: rank 1", lambda: engine.save_checkpoint(str(directory), tag="blocked")
    )
    assert (directory / "latest").read_text() == "global_step1"
    file = "mp_rank_00_model_states.pt"
    refused_by_all(
        mithril.NotFoundError,
        "no finished checkpoint",
        lambda: engine.checkpoint_engine.load(str(directory / "blocked" / file)),
    )
    # A save that replaces another and is not finished leaves no mixture that could be loaded.
    on_first(lambda: (directory / "global_step1" / "manifest.json").rename(directory / "kept.json"))
    refused_by_all(mithril.NotFoundError, "no finished checkpoint", lambda: engine.load_checkpoint(str(directory)))
    on_first(lambda: (directory / "kept.json").rename(directory / "global_step1" / "manifest.json"))
    assert engine.load_checkpoint(str(directory))[0] is not None
    # For others to read.
    engine.save_16bit_model(str(directory / "export"))
    dist.barrier()
    assert len(torch.load(directory / "export" / "pytorch_model.bin", weights_only=True)) == 4
    damaged(engine, directory / "global_step1" / file)
    # What is being written when the run ends is finished, and another save, or an export, finishes it too.
    background = engine_of(1, use_mithril=True, mithril_config={"decoupled": True})
    train(background, range(1))
    background.save_checkpoint(str(directory / "background"), tag="one")
    background.save_checkpoint(str(directory / "background"), tag="two")
    assert (directory / "background" / "latest").read_text() == "one"
    background.destroy()
    assert (directory / "background" / "latest").read_text() == "two"
    for tag in ("one", "two"):
        assert engine.load_checkpoint(str(directory / "background"), tag=tag)[0] is not None


def damaged(engine: Any, path: Path) -> None:
    def flip() -> None:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    on_first(flip)
    refused_by_all(mithril.MithrilError, "", lambda: engine.checkpoint_engine.load(str(path)))
    on_first(flip)
    engine.checkpoint_engine.load(str(path))
    dist.barrier()
    on_first(lambda: path.write_bytes(path.read_bytes()[:-1]))
    refused_by_all(mithril.CorruptError, "bytes, and was saved with", lambda: engine.checkpoint_engine.load(str(path)))


def wrong_engines() -> None:
    refused_by_all(ValueError, "no option `level`", lambda: engine_of(0, use_mithril=True, mithril_config={"level": 3}))
    refused_by_all(ValueError, "no int", lambda: engine_of(0, use_mithril=True, mithril_config={"threads": "all"}))
    refused_by_all(ValueError, "use_mithril", lambda: ours.install(engine_of(0, use_mithril=False)))
    engine = engine_of(0)
    assert ours.install(engine, effort="max").options.effort == "max"
    refused_by_all(ValueError, "installed on this engine already", lambda: ours.install(engine))
    engine.checkpoint_engine = object()
    refused_by_all(mithril.UnsupportedError, "through a object", lambda: ours.install(engine))
    refused_by_all(mithril.UnsupportedError, "is it an engine", lambda: ours.install(torch.nn.Linear(1, 1)))
    strict = engine_of(0, use_mithril=True, mithril_config={"trusted": False})
    refused_by_all(
        mithril.MithrilError, "trusted=True", lambda: strict.save_checkpoint("run", client_state={"odd": Namespace()})
    )


def main(rank: int, world: int, port: int, directory: Path) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    os.environ["LOCAL_RANK"] = str(rank)
    os.environ["DS_ACCELERATOR"] = "cpu"
    torch.set_num_threads(1)
    # It would be compiled; gloo does without.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo", verbose=False)
    for stage in range(4):
        one_stage(directory / str(stage), stage)
    universal(directory)
    weights_only(directory)
    deltas(directory / "deltas")
    failures(directory / "failures")
    wrong_engines()
    print("all is well")
    leave()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
