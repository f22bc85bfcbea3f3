"""PyTorch's distributed checkpoints in an object store: a real S3 server on this machine, and real ranks."""

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import mithril
from mithril import _mithril
from mithril.checkpoint import torch as ours

pytestmark = pytest.mark.filterwarnings("ignore")

BUCKET = "s3://checkpoints"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which `s3://` is a server that lives as long as the tests of this file."""
    port = free_port()
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as output:
        # No shell script of its environment: what runs is the package that this Python imports.
        start = "import sys; from moto.server import main; main(sys.argv[1:])"
        command = [sys.executable, "-c", start, "-H", "127.0.0.1", "-p", str(port)]
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        made = urllib.request.Request(f"http://127.0.0.1:{port}/checkpoints", method="PUT")
        urllib.request.urlopen(made, timeout=30).close()
        environment = {
            "AWS_ENDPOINT": f"http://127.0.0.1:{port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": "anything",
        }
        before = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        yield environment
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    finally:
        process.terminate()
        process.wait()


def state(step: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(700, 900, generator=generator)
    weight[step] *= 1.5
    return {"model": {"weight": weight, "bias": torch.arange(9.0)}, "epoch": step, "name": "run"}


def blank() -> dict[str, Any]:
    return {"model": {"weight": torch.zeros(700, 900), "bias": torch.zeros(9)}, "epoch": None, "name": None}


def check(loaded: dict[str, Any], step: int) -> None:
    expected = state(step)
    assert torch.equal(loaded["model"]["weight"], expected["model"]["weight"])
    assert torch.equal(loaded["model"]["bias"], expected["model"]["bias"])
    assert (loaded["epoch"], loaded["name"]) == (step, "run")


def load(url: str) -> dict[str, Any]:
    loaded = blank()
    dcp.load(loaded, storage_reader=ours.MithrilStorageReader(url), no_dist=True)
    return loaded


def keys(prefix: str) -> dict[str, int]:
    return {key: size for key, size, _ in _mithril.Storage(f"{BUCKET}/{prefix}").list("")}


def test_checkpoints_and_deltas_of_them_come_back_from_s3(server: dict[str, str]) -> None:
    for step in range(3):
        base = f"{BUCKET}/deltas/step_{step - 1}" if step else None
        writer = ours.MithrilStorageWriter(f"{BUCKET}/deltas/step_{step}", base=base)
        dcp.save(state(step), storage_writer=writer, no_dist=True)
    for step in range(3):
        check(load(f"{BUCKET}/deltas/step_{step}"), step)
    sizes = keys("deltas")
    containers = [next(size for key, size in sizes.items() if f"step_{n}/r" in key) for n in range(3)]
    assert max(containers[1:]) < containers[0] / 20, containers
    assert len(sizes) == 12, "a container, a manifest, the number, and what the server was tried with, of each"


def test_s3_keeps_the_rules_of_directories(server: dict[str, str]) -> None:
    url = f"{BUCKET}/rules/one"
    with pytest.raises(BaseException, match="no checkpoint"):
        load(url)
    dcp.save(state(1), storage_writer=ours.MithrilStorageWriter(url), no_dist=True)
    with pytest.raises(BaseException, match="overwrite=True"):
        dcp.save(state(2), storage_writer=ours.MithrilStorageWriter(url), no_dist=True)
    check(load(url), 1)
    dcp.save(state(2), storage_writer=ours.MithrilStorageWriter(url, overwrite=True), no_dist=True)
    check(load(url), 2)
    containers = [key for key in keys("rules/one") if key.endswith(".mckp")]
    assert len(containers) == 1, "the old container is gone"
    (container,) = containers
    _mithril.Storage(url).delete(container)
    with pytest.raises(BaseException, match="missing"):
        load(url)
    _mithril.Storage(url).delete("manifest.json")
    _mithril.Storage(url).put_new("r00000-of-a-killed-rank.mckp", b"cut off")
    with pytest.raises(BaseException, match="no finished checkpoint"):
        load(url)


def test_latest_and_retention_in_s3(server: dict[str, str]) -> None:
    root = f"{BUCKET}/kept"
    with pytest.raises(mithril.NotFoundError):
        ours.latest(root)
    for step in range(4):
        base = f"{root}/step_{step - 1}" if step else None
        ours.save(state(step), checkpoint_id=f"{root}/step_{step}", base=base, step=step, keep_last=1, no_dist=True)
    assert ours.latest(root) == f"{root}/step_3"
    assert {key.partition("/")[0] for key in keys("kept")} == {"latest", "step_0", "step_3"}
    _mithril.Storage(root).delete("latest")
    assert ours.latest(root) == f"{root}/step_3", "a missing pointer is not fatal"
    check(load(f"{root}/step_3"), 3)


@pytest.mark.parametrize("way", ["dcp", "dcp-background", "dcp in S3"])
def test_a_run_killed_before_latest_is_moved_goes_on_behind_what_it_had_finished(
    way: str, server: dict[str, str], tmp_path: Path
) -> None:
    root = f"{BUCKET}/killed" if way == "dcp in S3" else str(tmp_path)
    script = Path(__file__).with_name("killed_saves.py")

    def run(killed_at: int) -> str:
        command = [sys.executable, str(script), way.partition(" ")[0], root, str(killed_at)]
        # One rank, for saves in the background.
        alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        done = subprocess.run(command, env={**os.environ, **server, **alone}, capture_output=True, text=True, timeout=300)
        assert done.returncode == (-9 if killed_at else 0), done.stdout + done.stderr
        return done.stdout

    run(2)
    assert ours.latest(root) in (f"{root}/step_2", tmp_path / "step_2"), "finished, though nothing names it"
    assert _mithril.Storage(root).get("latest", 100) == b"step_1"
    # Twice in a row, and at the first save behind a restart.
    run(3)
    assert "resumes at 4" in run(0)
    for step in range(6):
        check(load(f"{root}/step_{step}"), step)
    assert str(ours.latest(root)) == f"{root}/step_5"


def test_a_base_may_be_in_another_place(server: dict[str, str], tmp_path: Path) -> None:
    dcp.save(state(0), storage_writer=ours.MithrilStorageWriter(tmp_path / "base"), no_dist=True)
    writer = ours.MithrilStorageWriter(f"{BUCKET}/elsewhere/one", base=tmp_path / "base")
    dcp.save(state(1), storage_writer=writer, no_dist=True)
    check(load(f"{BUCKET}/elsewhere/one"), 1)
    writer = ours.MithrilStorageWriter(tmp_path / "local", base=f"{BUCKET}/elsewhere/one")
    dcp.save(state(2), storage_writer=writer, no_dist=True)
    check(load(str(tmp_path / "local")), 2)


def test_a_server_that_refuses_is_named(server: dict[str, str]) -> None:
    writer = ours.MithrilStorageWriter("s3://no-such-bucket/one")
    with pytest.raises(BaseException, match="no-such-bucket"):
        dcp.save(state(0), storage_writer=writer, no_dist=True)


def test_writers_and_readers_of_s3_are_picklable(server: dict[str, str]) -> None:
    writer = ours.MithrilStorageWriter(f"{BUCKET}/pickled/one", base=f"{BUCKET}/deltas/step_0")
    assert writer.path.storage is not None
    again = pickle.loads(pickle.dumps(writer))
    assert again.path == writer.path and again.base == writer.base
    dcp.save(state(2), storage_writer=again, no_dist=True)
    check(pickle.loads(pickle.dumps(load(f"{BUCKET}/pickled/one"))), 2)


def test_four_ranks_save_to_s3_and_load_from_it(server: dict[str, str]) -> None:
    script = Path(__file__).with_name("dcp_ranks.py")
    port = str(free_port())
    environment = {**os.environ, **server, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), port, f"{BUCKET}/ranks"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for rank in range(4)
    ]
    outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0, 0], "\n".join(outputs)
    assert "checked 16" in outputs[0]
