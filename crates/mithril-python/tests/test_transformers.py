"""Checkpoints of Hugging Face's Trainer through mithril, with the real package on a CPU."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import mithril
from mithril.checkpoint import Compressor, _pointers
from mithril.checkpoint._pointers import Pointers
from mithril.checkpoint.transformers import MithrilTrainer, MithrilTrainerMixin, latest, unpack

# transformers warns about its own and torch's changes.
pytestmark = pytest.mark.filterwarnings("ignore")


class Tokens(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 40

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 64, (8,), generator=torch.Generator().manual_seed(number))
        return {"input_ids": tokens, "labels": tokens}


class StopsAt(TrainerCallback):  # type: ignore[misc]
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = control.should_training_stop or state.global_step >= self.step


def trainer(run: Path, stop: int = 99, kind: Any = MithrilTrainer, own: dict[str, Any] | None = None, **arguments: Any) -> Any:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        # Random numbers matter, and two names are one tensor.
        attention_dropout=0.2,
        tie_word_embeddings=True,
    )
    settings = {"max_steps": 9, "save_steps": 2, "logging_steps": 1, "per_device_train_batch_size": 4, **arguments}
    args = TrainingArguments(str(run), report_to=[], use_cpu=True, disable_tqdm=True, **settings)
    made = kind(model=LlamaForCausalLM(config), args=args, train_dataset=Tokens(), callbacks=[StopsAt(stop)], **(own or {}))
    return made


def losses(finished: Any) -> list[tuple[int, float, float]]:
    return [(entry["step"], entry["loss"], entry["grad_norm"]) for entry in finished.state.log_history if "loss" in entry]


def fitted(run: Path, stop: int = 99, resume: Any = None, **options: Any) -> Any:
    made = trainer(run, stop, **options)
    made.train(resume_from_checkpoint=resume)
    return made


def names(run: Path) -> list[str]:
    return sorted(path.name for path in run.glob("checkpoint-*"))


def keys(run: Path) -> list[str]:
    return sorted(meta.key.partition("@")[0] for meta in Compressor(run / "mithril-store").list().checkpoints)


def test_a_resumed_run_has_the_losses_of_one_that_was_not_interrupted(tmp_path: Path) -> None:
    plain = losses(fitted(tmp_path / "plain", kind=Trainer))
    assert losses(fitted(tmp_path / "whole")) == plain and len(plain) == 9
    run = tmp_path / "run"
    assert len(losses(fitted(run, stop=5))) == 5
    # Where a run is stopped the trainer saves too.
    assert latest(run) == str(run / names(run)[-1])
    assert losses(fitted(run, resume=str(run / "checkpoint-4"))) == plain
    assert not list(run.rglob("*.safetensors")) and not list(run.rglob("optimizer.pt"))
    kinds = [meta.base is None for meta in Compressor(run / "mithril-store").list().checkpoints]
    assert kinds[0] and not all(kinds), "the first is whole, others are what changed"


def test_old_checkpoints_are_removed_with_their_data_after_the_new_one_is_safe(tmp_path: Path) -> None:
    fitted(tmp_path, save_total_limit=2)
    assert names(tmp_path) == keys(tmp_path) and len(names(tmp_path)) == 2
    resumed = fitted(tmp_path, resume=True, save_total_limit=1, max_steps=11)
    assert names(tmp_path) == keys(tmp_path) == ["checkpoint-11"]
    assert resumed.state.global_step == 11


def test_a_save_that_was_killed_is_passed_over_and_cleared_by_the_next(tmp_path: Path) -> None:
    fitted(tmp_path, stop=4, save_steps=2)
    # Killed before the file that names the rest was there.
    (tmp_path / "checkpoint-4" / "mithril.json").unlink()
    assert latest(tmp_path) == str(tmp_path / "checkpoint-2")
    fitted(tmp_path, stop=4, resume=True)
    assert latest(tmp_path) == str(tmp_path / "checkpoint-4")
    assert keys(tmp_path) == ["checkpoint-2", "checkpoint-4"], "nothing of the killed save stays"


def test_a_run_killed_before_its_checkpoint_is_named_goes_on(tmp_path: Path) -> None:
    script = Path(__file__).with_name("killed_saves.py")

    def run(root: Path, killed_at: int) -> str:
        command = [sys.executable, str(script), "trainer", str(root), str(killed_at)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == (-9 if killed_at else 0), done.stdout + done.stderr
        return done.stdout

    run(tmp_path / "run", 4)
    assert latest(tmp_path / "run") == str(tmp_path / "run" / "checkpoint-2")
    resumed = run(tmp_path / "run", 0)
    assert "resumes at 2" in resumed
    assert resumed.partition("losses")[2] == run(tmp_path / "whole", 0).partition("losses")[2] != ""
    assert keys(tmp_path / "run") == names(tmp_path / "run")


def test_damage_is_named(tmp_path: Path) -> None:
    fitted(tmp_path, stop=4)
    last = tmp_path / "checkpoint-4"
    (last / "trainer_state.json").write_bytes(b"{}")
    with pytest.raises(mithril.CorruptError, match=r"trainer_state\.json"):
        fitted(tmp_path, resume=str(last))
    assert latest(tmp_path) == str(tmp_path / "checkpoint-2"), "the newest that is whole"
    for data in (tmp_path / "mithril-store" / "data").iterdir():
        content = data.read_bytes()
        data.write_bytes(content[:1000] + bytes(4000) + content[5000:])
    with pytest.raises(mithril.MithrilError, match="checkpoint-2"):
        fitted(tmp_path, resume=str(tmp_path / "checkpoint-2"))
    (tmp_path / "checkpoint-2" / "mithril.json").write_text('{"format": "mithril poin')
    assert latest(tmp_path) is None
    with pytest.raises(mithril.NotFoundError, match="no checkpoint"):
        fitted(tmp_path, resume=True)


def test_plain_checkpoints_are_resumed_and_ours_become_plain(tmp_path: Path) -> None:
    plain = fitted(tmp_path / "plain", kind=Trainer)
    fitted(tmp_path / "mixed", stop=4, kind=Trainer)
    run = tmp_path / "mixed"
    assert losses(fitted(run, resume=True)) == losses(plain)
    assert (run / "checkpoint-8" / "mithril.json").is_file()

    unpack(run / "checkpoint-8", tmp_path / "unpacked" / "checkpoint-8")
    resumed = fitted(tmp_path / "unpacked", kind=Trainer, resume=str(tmp_path / "unpacked" / "checkpoint-8"))
    assert losses(resumed) == losses(plain)
    model = LlamaForCausalLM.from_pretrained(tmp_path / "unpacked" / "checkpoint-8")
    step_8 = LlamaForCausalLM.from_pretrained(tmp_path / "plain" / "checkpoint-8")
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), step_8.parameters(), strict=True))


class Opaque:
    """Stored by pickle alone."""


def test_unpacking_runs_pickles_only_if_trusted_and_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run" / "checkpoint-1"
    path.mkdir(parents=True)
    (path / "trainer_state.json").write_text("{}")
    files = _pointers.secured(path, leave_out="mithril.json")
    contents = {"model": {"w": torch.ones(9)}, "optimizer": {"kept": Opaque()}}
    Pointers(None, {"trusted": True}).save(path / "mithril.json", contents, files=files)
    path.joinpath("mithril.json").chmod(0o600)
    with pytest.raises(TypeError, match="trusted=True"):
        unpack(path, tmp_path / "plain")
    unpack(path, tmp_path / "plain", trusted=True)
    found = torch.load(tmp_path / "plain" / "optimizer.pt", weights_only=False)
    assert isinstance(found["kept"], Opaque)
    assert (tmp_path / "plain" / "trainer_state.json").read_text() == "{}"
    files_and_top = [file for file in (tmp_path / "plain").rglob("*") if file.is_file()] + [tmp_path / "plain"]
    assert {file.stat().st_mode & 0o077 for file in files_and_top} == {0}
    with pytest.raises(FileExistsError):
        unpack(path, tmp_path / "plain", trusted=True)

    def full(*_arguments: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="is full"):
        unpack(path, tmp_path / "other", trusted=True)
    assert sorted(found.name for found in tmp_path.iterdir()) == ["plain", "run"]


def test_the_best_model_is_kept_and_loaded(tmp_path: Path) -> None:
    options = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "save_total_limit": 1}
    made = trainer(tmp_path, max_steps=6, learning_rate=1.0, own={"eval_dataset": Tokens()}, **options)
    made.train()
    best = made.state.best_model_checkpoint
    assert best is not None and Path(best).name in names(tmp_path)
    unpack(best, tmp_path / "best")
    expected = LlamaForCausalLM.from_pretrained(tmp_path / "best")
    assert all(torch.equal(one, other) for one, other in zip(made.model.parameters(), expected.parameters(), strict=True))


def test_options_reach_the_store_and_mistakes_are_told(tmp_path: Path) -> None:
    store = tmp_path / "elsewhere"
    fitted(tmp_path / "run", stop=4, own={"storage": store, "compression": {"delta_enabled": False}}, save_only_model=True)
    assert [meta.base for meta in Compressor(store).list().checkpoints] == [None, None]
    key = next(iter(Compressor(store).list().keys()))
    assert set(Compressor(store).load(key)) == {"model"}
    with pytest.raises(TypeError, match="keep_last"):
        trainer(tmp_path / "run", own={"compression": {"keep_last": 1}})
    with pytest.raises(TypeError, match="no_such_option"):
        trainer(tmp_path / "run", own={"compression": {"no_such_option": 1}})


def test_other_trainers_take_the_mixin(tmp_path: Path) -> None:
    class Own(MithrilTrainerMixin, Trainer):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return 2 * super().compute_loss(*args, **kwargs)

    assert losses(fitted(tmp_path / "a", kind=Own))[0][1] == 2 * losses(fitted(tmp_path / "b", stop=1))[0][1]
    assert latest(tmp_path / "a") is not None


def test_ranks_that_share_a_model_save_once_and_resume_each_with_its_random_numbers(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    script = Path(__file__).with_name("transformers_ranks.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=400)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)
    assert all("agrees over" in output for output in outputs)


def test_without_the_package_the_error_says_what_to_install() -> None:
    script = "import sys; sys.modules['transformers'] = None; import mithril.checkpoint.transformers"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "pip install transformers[torch]" in done.stderr
