"""Manifests of checkpoints of several processes: what they may say, and that the containers are those they name."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import torch
from test_torch_checkpoint import blank, check_equal, load, save

import mithril
from mithril.checkpoint import _manifest
from mithril.checkpoint._chunks import Checkpoint
from mithril.checkpoint._coverage import check
from mithril.checkpoint._sealed import sealed, unsealed
from mithril.checkpoint.orbax import MithrilCheckpointHandler, MithrilRestore, MithrilSave
from mithril.checkpoint.torch import _writer

pytestmark = pytest.mark.filterwarnings("ignore")

FORMAT = "mithril distributed checkpoint"


def state(seed: int = 1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {f"w{n}": torch.randn(64, 48, generator=generator) for n in range(4)}


def body_of(path: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((path / "manifest.json").read_text())["body"]
    return body


def halves(chunks: list[dict[str, Any]], *offsets_and_rows: tuple[list[int], list[int]]) -> None:
    """Chunks at these places, all with the bytes of the one that is there."""
    chunks[:] = [{**chunks[0], "offsets": offsets, "sizes": sizes} for offsets, sizes in offsets_and_rows]


WRONG: dict[str, Callable[[dict[str, Any]], Any]] = {
    "negative": lambda t: halves(t["chunks"], ([-32, 0], [64, 48]), ([32, 0], [32, 48])),
    "twice": lambda t: t["chunks"].append(t["chunks"][0]),
    "overlap": lambda t: halves(t["chunks"], ([0, 0], [40, 48]), ([32, 0], [32, 48])),
    "leaves": lambda t: halves(t["chunks"], ([8, 0], [64, 48])),
    "whole of it": lambda t: halves(t["chunks"], ([0, 0], [32, 48])),
    "nothing": lambda t: t["chunks"].clear(),
    "dimensions": lambda t: halves(t["chunks"], ([0], [64])),
    "negative size": lambda t: halves(t["chunks"], ([0, 0], [64, -48])),
    "no integer": lambda t: halves(t["chunks"], ([0, 0], [64, 48.0])),  # type: ignore[list-item]
    "truth": lambda t: halves(t["chunks"], ([False, 0], [64, 48])),
    "negative shape": lambda t: t.update(size=[64, -48]),
    "another file": lambda t: t["chunks"][0].update(file="r00009-0123456789abcdef.mckp"),
    "a path": lambda t: t["chunks"][0].update(file="../elsewhere.mckp"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_chunks_that_cannot_be_are_refused(wrong: str, tmp_path: Path) -> None:
    save(tmp_path / "dcp", state())
    tree = {name: jnp.asarray(tensor.numpy()) for name, tensor in state().items()}
    checkpointer = ocp.Checkpointer(MithrilCheckpointHandler())
    checkpointer.save(tmp_path / "orbax", args=MithrilSave(tree))
    for path in (tmp_path / "dcp", tmp_path / "orbax"):
        body = body_of(path)
        WRONG[wrong](body["tensors"]["w1"])
        (path / "manifest.json").write_bytes(sealed(body, FORMAT, 1))
    with pytest.raises(BaseException, match=r"manifest\.json` is damaged"):
        load(tmp_path / "dcp", blank(state()))
    for target in (None, tree):
        with pytest.raises(mithril.CorruptError, match=r"manifest\.json` is damaged"):
            checkpointer.restore(tmp_path / "orbax", args=MithrilRestore(target))


def test_any_cut_of_a_tensor_is_accepted_and_nothing_else() -> None:
    random = np.random.default_rng(7)
    n_accepted = 0
    for _ in range(1500):
        size = tuple(int(n) for n in random.integers(1, 7, random.integers(0, 4)))
        boxes = [((0,) * len(size), size)]
        for _ in range(random.integers(0, 5)):
            offsets, sizes = boxes.pop(random.integers(len(boxes)))
            dimension = int(random.integers(len(size))) if size else 0
            if not size or sizes[dimension] < 2:
                boxes.append((offsets, sizes))
                continue
            at = int(random.integers(1, sizes[dimension]))
            lower = tuple(at if d == dimension else n for d, n in enumerate(sizes))
            upper = tuple(n - at if d == dimension else n for d, n in enumerate(sizes))
            boxes += [(offsets, lower), (tuple(n + at if d == dimension else n for d, n in enumerate(offsets)), upper)]
        if size and random.random() < 0.5:
            offsets, sizes = boxes.pop(random.integers(len(boxes)))
            start = tuple(int(random.integers(0, n)) for n in size)
            boxes.append((start, tuple(min(length, n - at) for at, length, n in zip(start, sizes, size, strict=True))))
        counts = np.zeros(size, int)
        for offsets, sizes in boxes:
            counts[tuple(slice(at, at + length) for at, length in zip(offsets, sizes, strict=True))] += 1
        try:
            check("w", size, boxes)
        except ValueError:
            assert (counts != 1).any(), (size, boxes)
        else:
            assert (counts == 1).all(), (size, boxes)
            n_accepted += 1
    assert 500 < n_accepted < 1400


def test_the_digest_is_over_the_bytes() -> None:
    content = sealed({"a": [1, {"b": '"body":'}], "name": "é\ud800"}, FORMAT, 1)
    assert unsealed(content, "m", FORMAT, 1) == json.loads(content)["body"]
    for place in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[place] ^= 1 << bit
            with pytest.raises((mithril.CorruptError, mithril.UnsupportedError)):
                unsealed(bytes(flipped), "m", FORMAT, 1)
    # The same JSON in other bytes.
    for other in (json.dumps(json.loads(content)), content.decode().replace("[1,", "[1, "), "[" * 100_000):
        with pytest.raises(mithril.CorruptError):
            unsealed(other.encode(), "m", FORMAT, 1)
    body = content[content.index(b'"body":') :]
    two = content[: -len(body)] + b'"body":{"a":2},' + body
    with pytest.raises(mithril.CorruptError):
        unsealed(two, "m", FORMAT, 1)


def test_checkpoints_from_before_the_format_had_a_name_are_read(tmp_path: Path) -> None:
    def write_as_before(path: Path) -> None:
        body = body_of(path)
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        digest = hashlib.blake2b(text.encode(), digest_size=32).hexdigest()
        outer = {"format": "mithril checkpoint", "version": 1, "digest": digest, "body": body}
        (path / "manifest.json").write_text(json.dumps(outer, separators=(",", ":")))

    save(tmp_path / "base", state())
    save(tmp_path / "next", state(), base=tmp_path / "base")
    checkpointer = ocp.Checkpointer(MithrilCheckpointHandler())
    checkpointer.save(tmp_path / "orbax", args=MithrilSave({"w": jnp.arange(3)}))
    assert json.loads((tmp_path / "base" / "manifest.json").read_text())["format"] == FORMAT
    for name in ("base", "next", "orbax"):
        write_as_before(tmp_path / name)
    check_equal(load(tmp_path / "next", blank(state())), state())
    assert checkpointer.restore(tmp_path / "orbax", args=MithrilRestore())["w"].tolist() == [0, 1, 2]
    manifest = tmp_path / "orbax" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"sizes":[3]', '"sizes":[2]'))
    with pytest.raises(mithril.CorruptError, match="digest"):
        _manifest.read(tmp_path / "orbax")
    # What a store writes under that name is another format.
    (tmp_path / "orbax" / "manifest.json").write_text('{"format":"mithril checkpoint","version":1,"body":{}}')
    with pytest.raises(mithril.CorruptError):
        _manifest.read(tmp_path / "orbax")


@pytest.mark.parametrize("change", [lambda content: content[:-1], lambda content: content + b"x", lambda content: b""])
def test_containers_of_another_length_are_refused(change: Callable[[bytes], bytes], tmp_path: Path) -> None:
    save(tmp_path / "dcp", state())
    checkpointer = ocp.Checkpointer(MithrilCheckpointHandler())
    checkpointer.save(tmp_path / "orbax", args=MithrilSave({"w": jnp.arange(3)}))
    for path in (tmp_path / "dcp", tmp_path / "orbax"):
        (container,) = path.glob("*.mckp")
        container.write_bytes(change(container.read_bytes()))
    with pytest.raises(BaseException, match="was saved with"):
        load(tmp_path / "dcp", blank(state()))
    with pytest.raises(mithril.CorruptError, match="was saved with"):
        checkpointer.restore(tmp_path / "orbax", args=MithrilRestore())


def test_only_containers_that_are_needed_are_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each tensor has a container of its own here, as each rank has in a large world."""
    monkeypatch.setattr(_writer, "COPIES_SIZE", 1)
    transposed = {name: tensor.t() for name, tensor in state().items()}
    changed = {name: tensor + 1e-4 for name, tensor in transposed.items()}
    save(tmp_path / "base", transposed)
    save(tmp_path / "old", {**transposed, "w9": transposed["w0"].clone().t()})
    assert len(list((tmp_path / "base").glob("*.mckp"))) == 4
    opened: list[str] = []
    open_container = Checkpoint._opened

    def opening(self: Checkpoint, file: str, find_bases: Any) -> Any:
        opened.append(self.place.name)
        return open_container(self, file, find_bases)

    monkeypatch.setattr(Checkpoint, "_opened", opening)
    save(tmp_path / "one", {"w1": changed["w1"]}, base=tmp_path / "base")
    assert opened == ["base"]
    opened.clear()
    save(tmp_path / "next", changed, base=tmp_path / "base")
    assert opened == ["base"] * 4, "one for each container that is written"
    opened.clear()
    check_equal(load(tmp_path / "next", {"w2": torch.zeros(48, 64)}), {"w2": changed["w2"]})
    assert sorted(opened) == ["base", "next"]
    opened.clear()
    check_equal(load(tmp_path / "next", blank(changed)), changed)
    assert sorted(opened) == ["base"] * 4 + ["next"] * 4
    size = sum(path.stat().st_size for path in (tmp_path / "next").glob("*.mckp"))
    assert size < 0.8 * sum(path.stat().st_size for path in (tmp_path / "base").glob("*.mckp"))
