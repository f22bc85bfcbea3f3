"""What the attack scripts share: training states that return to earlier values, the command, and what a store must hold.

Needs nothing but Python: model files are written and read here.
"""

import array
import json
import random
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path

# Tensors by name: type, shape, bytes.
State = dict[str, tuple[str, list[int], bytes]]

# What a command may be refused with when another process works on the same keys.
RACES = ("exists already", "at the same time", "there is no checkpoint", "has no tensor", "no such checkpoint")


class Broken(Exception):
    """A promise that was not kept."""


def floats(seed: int, n: int, moved: int = 0) -> bytes:
    """Numbers that look like weights, in the low bits of which a step moves some."""
    fixed = random.Random(seed)
    values = array.array("f", (fixed.gauss(0, 0.02) for _ in range(n)))
    content = bytearray(values.tobytes())
    if moved:
        noise = random.Random(f"{seed}-{moved}")
        for at in range(0, len(content), 4):
            content[at] = (content[at] + noise.randrange(9)) & 255
    return bytes(content)


def state(step: int, writer: int = 0) -> State:
    """The state of a step: what moves, what alternates, what returns, what is frozen, what comes and goes."""
    n = 4000
    a_moved = max((s for s in range(step + 1) if s // 3 % 2 == 0), default=0)
    b_moved = max((s for s in range(step + 1) if s // 3 % 2 == 1), default=0)
    tensors: State = {
        "weight": ("F32", [n], floats(1, n, step + 1)),
        "frozen": ("F32", [n], floats(2, n)),
        "generator": ("F32", [n], floats(3, n, a_moved)),
        "discriminator": ("F32", [n], floats(4, n, b_moved)),
        "flag": ("F32", [16], struct.pack("<f", step // 2 % 2) * 16),
        "mode": ("I64", [1], struct.pack("<q", step % 3)),
        "returns": ("F32", [n], floats(5, n, step % 4)),
        "mask": ("U8", [256], bytes([step // 4 % 2]) * 256),
        "writer": ("I64", [1], struct.pack("<q", writer)),
    }
    if step % 5 < 2:
        tensors["adapter"] = ("F32", [n], floats(6, n, step // 5 % 2))
    if step % 7 == 3:
        tensors["tied"] = tensors["weight"]
    return tensors


def write_safetensors(tensors: State) -> bytes:
    header: dict[str, object] = {}
    at = 0
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(content)]}
        at += len(content)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(content for _, _, content in tensors.values())


def read_safetensors(content: bytes) -> State:
    (length,) = struct.unpack("<Q", content[:8])
    header, body = json.loads(content[8 : 8 + length]), content[8 + length :]
    header.pop("__metadata__", None)
    places = {name: entry["data_offsets"] for name, entry in header.items()}
    return {
        name: (entry["dtype"], entry["shape"], body[places[name][0] : places[name][1]])
        for name, entry in header.items()
    }


def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[bytes]:
    words = [str(word) for word in arguments]
    return subprocess.run(words, check=False, capture_output=True, **options)  # type: ignore[call-overload, no-any-return]


def said(result: subprocess.CompletedProcess[bytes]) -> str:
    return result.stderr.decode(errors="replace").strip()


def succeed(*arguments: object) -> bytes:
    result = run(*arguments)
    if result.returncode != 0:
        words = " ".join(Path(str(word)).name for word in arguments)
        raise Broken(f"refused without cause: {words}: exit code {result.returncode}: {said(result)}")
    return bytes(result.stdout)


class Store:
    """A store as its users know it: which step was acknowledged under which key, by which writer."""

    def __init__(self, mithril: Path, folder: Path) -> None:
        self.mithril, self.folder = mithril, folder
        self.acknowledged: dict[str, tuple[int, int]] = {}
        self.out = folder.with_name(folder.name + ".out")

    def command(self, *arguments: object) -> list[object]:
        return [self.mithril, "store", self.folder, *arguments]

    def keys(self) -> list[str]:
        """The keys that there are; none before the first save."""
        # A save that was killed may have left a temporary file there.
        if not any((self.folder / "manifests").glob("*.json")):
            return []
        listed = json.loads(succeed(*self.command("list", "--json")))
        return [checkpoint["key"] for checkpoint in listed["checkpoints"]]

    def compare(self, key: str) -> None:
        """Loads a checkpoint: it must be the one that was acknowledged, byte for byte."""
        self.out.unlink(missing_ok=True)
        result = run(*self.command("load", key, "-o", self.out))
        if result.returncode != 0:
            raise Broken(f"`{key}` was acknowledged and is lost: {said(result)}")
        step, writer = self.acknowledged[key]
        if read_safetensors(self.out.read_bytes()) != state(step, writer):
            raise Broken(f"`{key}` has wrong bytes")
        self.out.unlink()

    def check(self, keys: Iterable[str]) -> None:
        there = set(self.keys())
        lost = sorted(set(self.acknowledged) - there)
        if lost:
            raise Broken(f"acknowledged and lost: {', '.join(lost)}")
        for key in keys:
            self.compare(key)

    def check_all(self) -> None:
        """Everything is there, whole, and after gc nothing else is."""
        if not self.acknowledged:
            return
        self.check(self.acknowledged)
        succeed(*self.command("gc", "--min-age", 0))
        result = run(*self.command("verify", "--deep"))
        if result.returncode != 0:
            raise Broken(f"verify --deep: {result.stdout.decode()} {said(result)}")
        again = json.loads(succeed(*self.command("gc", "--min-age", 0, "--dry-run", "--json")))
        left = [str(path) for path in self.folder.rglob("*.tmp")] + list(again["removed"])
        left += [str(path) for path in self.folder.glob("removed/*")]
        if left:
            raise Broken(f"left over after gc: {left}")
