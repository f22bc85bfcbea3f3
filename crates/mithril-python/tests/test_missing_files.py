"""Files that are missing, or are something else: exceptions as `open` of Python makes them, from every call that opens one."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import mithril
import mithril.safetensors.flax
import mithril.safetensors.mlx
import mithril.safetensors.numpy
import mithril.safetensors.torch
from mithril import dictionary, model_delta
from mithril.safetensors import Reader, compress_file, decompress_file, load_file, safe_open, save, save_file

pytestmark = pytest.mark.filterwarnings("ignore")

TENSORS = {"w": np.arange(6, dtype=np.float32)}

READING = {
    "safe_open": lambda path, good: safe_open(path, "np"),
    "safe_open base": lambda path, good: safe_open(good, "np", base=path),
    "safe_open with a base": lambda path, good: safe_open(path, "np", base=good),
    "load_file": lambda path, good: load_file(path),
    "load_file numpy": lambda path, good: mithril.safetensors.numpy.load_file(path),
    "load_file torch": lambda path, good: mithril.safetensors.torch.load_file(path),
    "load_file flax": lambda path, good: mithril.safetensors.flax.load_file(path),
    "load_file mlx": lambda path, good: mithril.safetensors.mlx.load_file(path),
    "load_model": lambda path, good: mithril.safetensors.torch.load_model(torch.nn.Linear(2, 2), path),
    "save base": lambda path, good: save(TENSORS, base=path),
    "save_file base": lambda path, good: save_file(TENSORS, f"{good}.out", base=path),
    "Reader.open": lambda path, good: Reader.open(path),
    "Reader.open base": lambda path, good: Reader.open(good, base=path),
    "compress_file": lambda path, good: compress_file(path, f"{good}.out"),
    "compress_file base": lambda path, good: compress_file(f"{good}.plain", f"{good}.out", base=path),
    "decompress_file": lambda path, good: decompress_file(path, f"{good}.out"),
    "decompress_file base": lambda path, good: decompress_file(good, f"{good}.out", base=path),
    "model_delta.compress_file": lambda path, good: model_delta.compress_file(path, good, f"{good}.out"),
    "model_delta.compress_file base": lambda path, good: model_delta.compress_file(f"{good}.plain", path, f"{good}.out"),
    "model_delta.decompress_file": lambda path, good: model_delta.decompress_file(path, good, f"{good}.out"),
    "model_delta.decompress_file base": lambda path, good: model_delta.decompress_file(good, path, f"{good}.out"),
    "dictionary.load": lambda path, good: dictionary.Dictionary.load(path),
}
WRITING = {
    "save_file": lambda path, good: save_file(TENSORS, path),
    "save_file torch": lambda path, good: mithril.safetensors.torch.save_file({"w": torch.ones(2)}, path),
    "save_model": lambda path, good: mithril.safetensors.torch.save_model(torch.nn.Linear(2, 2), path),
    "compress_file": lambda path, good: compress_file(f"{good}.plain", path),
    "decompress_file": lambda path, good: decompress_file(good, path),
    "model_delta.compress_file": lambda path, good: model_delta.compress_file(f"{good}.plain", good, path),
}


def files(tmp_path):
    good = tmp_path / "good"
    save_file(TENSORS, good)
    decompress_file(good, f"{good}.plain")
    return good


def check_like_open(error, path, mode="rb"):
    """Type, number, reason, name and text are those of `open`."""
    with pytest.raises(OSError) as expected:
        open(path, mode).close()
    expected = expected.value
    assert type(error) is type(expected)
    assert (error.errno, error.strerror, os.fspath(error.filename)) == (expected.errno, expected.strerror, os.fspath(path))
    assert str(error) == str(expected)


@pytest.mark.parametrize("name", READING)
@pytest.mark.parametrize("wrong", ["absent", "below/absent", "good/below", "folder", "loop", "é\udcff"])
def test_a_file_that_cannot_be_opened_is_reported_as_by_open(name, wrong, tmp_path):
    good = files(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    if wrong == "folder" and "base" in name:
        pytest.skip("a directory of models is a base, too")
    with pytest.raises(OSError) as caught:
        READING[name](tmp_path / wrong, good)
    check_like_open(caught.value, tmp_path / wrong)
    assert not (tmp_path / "good.out").exists()


@pytest.mark.parametrize("name", WRITING)
def test_a_file_that_cannot_be_written_is_reported_as_by_open(name, tmp_path):
    good = files(tmp_path)
    for wrong in ("below/absent", "good/below"):
        with pytest.raises(OSError) as caught:
            WRITING[name](tmp_path / wrong, good)
        check_like_open(caught.value, tmp_path / wrong, "wb")


def test_a_file_that_may_not_be_read_is_reported_as_by_open(tmp_path):
    """As a user for whom permissions count."""
    program = (
        "import os, sys, numpy\n"
        "from mithril.safetensors import safe_open\n"
        "from mithril._adapters import numpy\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "for call in (lambda: open(sys.argv[1], 'rb'), lambda: safe_open(sys.argv[1], 'np')):\n"
        "    try: call()\n"
        "    except OSError as error: print(type(error), error.errno, error.strerror, error.filename, error)\n"
    )
    good = files(tmp_path)
    for directory in (tmp_path, *tmp_path.parents):
        if "pytest" in str(directory):
            directory.chmod(0o755)
    good.chmod(0)
    found = subprocess.run([sys.executable, "-c", program, str(good)], capture_output=True, text=True, timeout=120)
    lines = found.stdout.splitlines()
    assert len(lines) == 2 and lines[0] == lines[1], found.stderr
    assert "PermissionError" in lines[0]
