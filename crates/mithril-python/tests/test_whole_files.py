"""What Python writes by itself appears whole or not at all, and leaves nothing that the next run does not remove."""

import os
import re
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mithril import _mithril
from mithril.dictionary import Dictionary, train

TEMPORARY = re.compile(r"\.whole\.[0-9a-f]{32}\.tmp")
RECORDS = [b'{"user": %d, "name": "name %d", "active": true}' % (i, i * 7919 % 1000) for i in range(200)]


def write_file(path: Path, content: bytes = b"content") -> None:
    with _mithril.OutputFile(path, True) as file:
        file.write(content)


def write_directory(path: Path, content: bytes = b"content") -> None:
    with _mithril.OutputDirectory(path) as directory:
        (directory / "inner").write_bytes(content)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_threads_save_a_dictionary_to_one_path(tmp_path: Path) -> None:
    dictionary = train(RECORDS, size=1024)
    path = tmp_path / "shared.dict"

    def save(_number: int) -> None:
        dictionary.save(path)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(save, range(100)))
    assert Dictionary.load(path).data == dictionary.data
    assert os.listdir(tmp_path) == ["shared.dict"]
    # Of a run that was killed.
    (tmp_path / f"shared.dict.{os.getpid()}.tmp").write_bytes(b"left")
    dictionary.save(path)


@pytest.mark.parametrize("write", [write_file, write_directory])
def test_what_a_killed_run_left_is_private_and_goes(tmp_path: Path, write: Any) -> None:
    path = tmp_path / "whole"
    program = (
        "import os, sys; from mithril import _mithril; path = sys.argv[2]\n"
        "if sys.argv[1] == 'write_file':\n"
        "    with _mithril.OutputFile(path, True) as file: file.write(b'part'); os._exit(9)\n"
        "with _mithril.OutputDirectory(path) as directory: open(directory / 'inner', 'wb').close(); os._exit(9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, write.__name__, path], check=False)
    assert ended.returncode == 9
    (left,) = tmp_path.iterdir()
    assert TEMPORARY.fullmatch(left.name) and mode(left) & 0o077 == 0
    write(path)
    assert os.listdir(tmp_path) == ["whole"]


@pytest.mark.parametrize("write", [write_file, write_directory])
def test_a_failure_leaves_nothing(tmp_path: Path, write: Any) -> None:
    with pytest.raises(TypeError):
        write(tmp_path / "whole", 1.5)
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_replaced_stays_as_private(tmp_path: Path) -> None:
    path, source = tmp_path / "whole", tmp_path / "source"
    write_file(path)
    assert mode(path) == 0o666 & ~umask()
    path.chmod(0o600)
    write_file(path, b"other")
    assert (mode(path), path.read_bytes()) == (0o600, b"other")
    source.touch(0o600)
    with _mithril.OutputFile(tmp_path / "of_source", False, source) as file:
        file.write(b"content")
    assert mode(tmp_path / "of_source") == 0o600


def umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found


def test_a_file_that_may_not_be_replaced_is_not(tmp_path: Path) -> None:
    path = tmp_path / "whole"
    file = _mithril.OutputFile(path, False)

    def write_late() -> None:
        with file:
            file.write(b"late")
            path.write_bytes(b"first")

    with pytest.raises(FileExistsError):
        write_late()
    assert path.read_bytes() == b"first" and os.listdir(tmp_path) == ["whole"]
    with pytest.raises(OSError, match="not being written"):
        file.write(b"more")
