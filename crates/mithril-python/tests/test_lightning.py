"""Lightning's checkpoints through mithril, with the real package on a CPU."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.plugins.io import AsyncCheckpointIO
from torch.utils.data import DataLoader, TensorDataset

import mithril
from mithril.checkpoint import Compressor
from mithril.checkpoint.lightning import MithrilCheckpointIO, unpack

# Lightning warns about few workers, missing loggers and its own use of torch.
pytestmark = pytest.mark.filterwarnings("ignore")


class Model(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Dropout(0.2), torch.nn.Linear(width, 1))
        self.losses: list[float] = []
        self.random: torch.Tensor | None = None

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        if self.random is not None:
            torch.set_rng_state(self.random)
            self.random = None
        loss = (self.net(batch[0]) - batch[0].sum(1, keepdim=True)).square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), 1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    # Lightning leaves random numbers to the user.
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["random"] = torch.get_rng_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.random = checkpoint["random"]


def fitted(directory: Path, steps: int, resume: Any = None, plugin: Any = None, **settings: Any) -> Model:
    lightning.seed_everything(1, verbose=False)
    torch.set_num_threads(1)
    model = Model()
    data = TensorDataset(torch.randn(12, 8, generator=torch.Generator().manual_seed(2)))
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[] if plugin is False else [plugin or MithrilCheckpointIO()],
        callbacks=[ModelCheckpoint(directory, every_n_train_steps=3, save_last=True, **settings)],
    )
    # Three steps are an epoch: Lightning does not skip what an epoch had seen when it was interrupted. And a generator of
    # its own: starting an epoch draws no numbers from the model's.
    loader = DataLoader(data, batch_size=4, generator=torch.Generator().manual_seed(3))
    trainer.fit(model, loader, ckpt_path=resume)
    return model


def keys(directory: Path) -> list[str]:
    return sorted(meta.key.partition("@")[0] for meta in Compressor(directory / "mithril-store").list().checkpoints)


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.ckpt"))


def test_a_resumed_run_has_the_losses_of_one_that_was_not_interrupted(tmp_path: Path) -> None:
    whole = fitted(tmp_path / "plain", 12, plugin=False)
    assert fitted(tmp_path / "whole", 12).losses == whole.losses
    fitted(tmp_path / "run", 6)
    resumed = fitted(tmp_path / "run", 12, resume="last")
    assert resumed.losses == whole.losses[6:] and len(resumed.losses) == 6
    assert all((tmp_path / "run" / name).stat().st_size < 1000 for name in files(tmp_path / "run"))
    checkpoints = Compressor(tmp_path / "run" / "mithril-store").list().checkpoints
    assert any(meta.base is not None for meta in checkpoints), "later ones are what changed"


def test_what_lightning_removes_goes_with_its_data(tmp_path: Path) -> None:
    fitted(tmp_path, 12, monitor="step", mode="max", save_top_k=2)
    assert files(tmp_path) == keys(tmp_path) == ["epoch=2-step=9.ckpt", "epoch=3-step=12.ckpt", "last.ckpt"]


def test_a_save_that_was_killed_is_cleared_by_the_next_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    plugin = MithrilCheckpointIO()
    plugin.save_checkpoint({"w": torch.ones(100), "global_step": 1}, path)
    # Killed after the data was stored, and before the file named it.
    Compressor(tmp_path / "mithril-store").save({"w": torch.ones(100)}, "last.ckpt@0123456789abcdef")
    assert plugin.load_checkpoint(path)["global_step"] == 1
    plugin.save_checkpoint({"w": torch.zeros(100), "global_step": 2}, path)
    assert keys(tmp_path) == ["last.ckpt"] and plugin.load_checkpoint(path)["global_step"] == 2
    plugin.remove_checkpoint(path)
    assert keys(tmp_path) == files(tmp_path) == []


def test_a_run_killed_before_its_checkpoint_is_named_goes_on(tmp_path: Path) -> None:
    script = Path(__file__).with_name("killed_saves.py")

    def run(killed_at: int) -> str:
        command = [sys.executable, str(script), "lightning", str(tmp_path / "run"), str(killed_at)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == (-9 if killed_at else 0), done.stdout + done.stderr
        return done.stdout

    run(6)
    whole = fitted(tmp_path / "whole", 6).losses
    # Of six steps the last three again: `last.ckpt` is that of the third.
    assert f"losses {whole[3:]}" in run(0) and len(whole) == 6


def test_damage_is_named(tmp_path: Path) -> None:
    fitted(tmp_path, 3)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        fitted(tmp_path, 6, resume=str(tmp_path / "nowhere.ckpt"))
    last = tmp_path / "last.ckpt"
    pointer = last.read_bytes()
    last.write_bytes(pointer.replace(b'"version":1', b'"version":2'))
    with pytest.raises(mithril.UnsupportedError, match="version 2"):
        fitted(tmp_path, 6, resume="last")
    last.write_bytes(pointer[:-20])
    with pytest.raises(mithril.CorruptError, match=r"last\.ckpt"):
        fitted(tmp_path, 6, resume="last")
    last.write_bytes(pointer)
    for data in (tmp_path / "mithril-store" / "data").iterdir():
        content = data.read_bytes()
        third = len(content) // 3
        data.write_bytes(content[:third] + bytes(third) + content[2 * third :])
    with pytest.raises(mithril.MithrilError, match=r"last\.ckpt"):
        fitted(tmp_path, 6, resume="last")
    (tmp_path / "mithril-store").rename(tmp_path / "moved")
    with pytest.raises(mithril.NotFoundError, match="mithril-store"):
        fitted(tmp_path, 6, resume="last")


def test_plain_files_are_resumed_and_ours_become_plain(tmp_path: Path) -> None:
    whole = fitted(tmp_path / "whole", 12, plugin=False)
    fitted(tmp_path / "run", 6, plugin=False)
    assert fitted(tmp_path / "run", 9, resume="last").losses == whole.losses[6:9]
    unpack(tmp_path / "run" / "last.ckpt", tmp_path / "plain.ckpt")
    assert fitted(tmp_path / "b", 12, resume=str(tmp_path / "plain.ckpt"), plugin=False).losses == whole.losses[9:]
    assert Model.load_from_checkpoint(tmp_path / "plain.ckpt").hparams.width == 32


def test_saves_in_the_background_by_lightnings_own_plug_in(tmp_path: Path) -> None:
    whole = fitted(tmp_path / "whole", 12, plugin=False)
    fitted(tmp_path / "run", 6, plugin=AsyncCheckpointIO(MithrilCheckpointIO()))
    assert fitted(tmp_path / "run", 12, resume="last").losses == whole.losses[6:]


class Opaque:
    """Only unpickling makes one of these."""


def test_objects_are_pickled_only_when_trusted(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"hyper_parameters\.thing"):
        MithrilCheckpointIO().save_checkpoint({"hyper_parameters": {"thing": Opaque()}}, tmp_path / "a.ckpt")
    assert not (tmp_path / "a.ckpt").exists()
    trusting = MithrilCheckpointIO(trusted=True)
    trusting.save_checkpoint({"hyper_parameters": {"thing": Opaque()}}, tmp_path / "a.ckpt")
    assert isinstance(trusting.load_checkpoint(tmp_path / "a.ckpt")["hyper_parameters"]["thing"], Opaque)
    with pytest.raises(TypeError, match="trusted=True"):
        trusting.load_checkpoint(tmp_path / "a.ckpt", weights_only=True)
    with pytest.raises(TypeError, match="trusted=True"):
        MithrilCheckpointIO().load_checkpoint(tmp_path / "a.ckpt")


def test_what_cannot_be_is_told(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="keep_last"):
        MithrilCheckpointIO(keep_last=2)
    with pytest.raises(TypeError, match="storage_options"):
        MithrilCheckpointIO().save_checkpoint({}, tmp_path / "a.ckpt", storage_options={})
    with pytest.raises(mithril.UnsupportedError, match="s3://bucket"):
        MithrilCheckpointIO().save_checkpoint({}, "s3://bucket/a.ckpt")


def test_without_the_package_the_error_says_what_to_install() -> None:
    script = """import sys
sys.modules["lightning"] = sys.modules["pytorch_lightning"] = None
import mithril.checkpoint.lightning"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "pip install lightning" in done.stderr
