"""Random trees of files through the package and the command: what one packs, the other restores; the model is the bytes.

The number of cases is that of every run; `MITHRIL_FAULTS=full pytest crates/mithril-python/tests/test_trees.py` runs more.
"""

import json
import os
import pathlib
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mithril
import mithril.chunked
import mithril.model_delta
import mithril.safetensors

IS_FULL = os.environ.get("MITHRIL_FAULTS") == "full"
settings.register_profile("trees", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))

DTYPES = [
    np.float32, np.float16, np.float64, np.int64, np.int32, np.uint8, np.bool_,
    ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
]  # fmt: skip
SHAPES = [(), (0,), (3, 0, 5), (1,), (7,), (24, 100), (24, 100), (128, 256)]
NAMES = ["w", "layer.0.weight", "λ/../x", "", "a b", 'q"\\\n', "-"]
PLACES = [
    "model.safetensors", "-dash", "with space", ".hidden", "größe 模型", "not.mckp", "not.safetensors", "a/b/model.safetensors",
    "a/config.json", "files", "new\nline",
]  # fmt: skip
EFFORTS = [None, "fast", "balanced", "max"]


@st.composite
def states(draw):
    """Arrays by name: of few seeds, so that some are equal, or roundings of others."""
    state = {}
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=5)):
        dtype, shape = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(SHAPES))
        rng = np.random.default_rng(draw(st.integers(0, 2)))
        kind = draw(st.sampled_from(["weights", "weights", "zeros", "noise"]))
        if kind == "weights":
            state[name] = np.asarray(rng.standard_normal(shape) * 3).astype(np.float32).astype(dtype)
        elif kind == "zeros" or dtype is np.bool_:
            state[name] = np.zeros(shape, dtype)
        else:
            state[name] = np.frombuffer(rng.bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape)
    return state


@st.composite
def trees(draw):
    """Files by place: models and the states that they hold, and other bytes, which hold none."""
    tree = {}
    for place in draw(st.lists(st.sampled_from(PLACES), unique=True, min_size=1, max_size=5)):
        if draw(st.integers(0, 2)):
            state = draw(states())
            tree[place] = (safetensors.numpy.save(state, draw(st.sampled_from([None, {"format": "np", "π": "\n"}]))), state)
        else:
            rng = np.random.default_rng(draw(st.integers(0, 9)))
            length = draw(st.sampled_from([0, 1, 7, 5000, (1 << 16) - 1, (1 << 16) + 1]))
            tree[place] = (draw(st.sampled_from([bytes(length), b"words " * (length // 6), rng.bytes(length)])), None)
    return tree


def tuned(draw, state):
    """The state after some training: arrays stay, change in some elements, or are new."""
    after = {}
    for name, array in state.items():
        change = draw(st.sampled_from(["none", "some", "all", "gone"]))
        bits = bytearray(array.tobytes())
        if change == "some" and array.dtype != np.bool_:
            bits[:: 37 * array.dtype.itemsize] = bytes(byte ^ 1 for byte in bits[:: 37 * array.dtype.itemsize])
        elif change == "all" and array.dtype != np.bool_:
            bits = bytes(byte ^ 0x11 for byte in bits)
        if change != "gone":
            after[name] = np.frombuffer(bytes(bits), array.dtype).reshape(array.shape)
    return after | {"new": np.arange(draw(st.integers(0, 300)), dtype=np.float32)}


def command(*arguments, stdin=b"", code=0):
    """Runs the command of the package; returns what it wrote."""
    line = [sys.executable, "-m", "mithril", *map(str, arguments)]
    done = subprocess.run(line, input=stdin, capture_output=True, timeout=120)
    assert done.returncode == code, done.stderr.decode()
    return done.stdout


def write(root, tree):
    for place, (raw, _) in tree.items():
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)


def contents(root):
    """All files below a directory: nothing but what must be there."""
    return {str(path.relative_to(root)): path.read_bytes() for path in pathlib.Path(root).rglob("*") if path.is_file()}


def check(loaded, state):
    assert loaded.keys() == state.keys()
    for name, expected in state.items():
        assert (loaded[name].dtype, loaded[name].shape) == (expected.dtype, expected.shape), name
        assert loaded[name].tobytes() == expected.tobytes(), name


def check_plain(raw, state):
    """By the package `safetensors`, whose arrays are not of every type, but whose bytes are."""
    found = {name: (tuple(tensor["shape"]), bytes(tensor["data"])) for name, tensor in safetensors.deserialize(raw)}
    assert found == {name: (array.shape, array.tobytes()) for name, array in state.items()}


def is_opened(raw):
    """Whether the package takes these bytes for a model."""
    try:
        mithril.safetensors.load(raw)
    except (ValueError, mithril.MithrilError):
        return False
    return True


@given(trees(), st.data())
@settings(settings.get_profile("trees"), max_examples=400 if IS_FULL else 12)
def test_what_the_package_packs_the_command_restores_and_the_other_way_round(tmp_path_factory, tree, data):
    root = tmp_path_factory.mktemp("trees")
    source, packed, back = root / "in", root / "packed", root / "back"
    packed.mkdir()
    write(source, tree)
    by_package = {}
    for number, (place, (raw, state)) in enumerate(tree.items()):
        effort = data.draw(st.sampled_from(EFFORTS))
        threads = data.draw(st.integers(0, 3))
        path = packed / f"{number}.mckp"
        if state is None:
            path.write_bytes(mithril.compress(raw, effort=effort, threads=threads))
        elif data.draw(st.booleans()):
            mithril.safetensors.compress_file(source / place, path, effort=effort, threads=threads)
        else:
            path.write_bytes(mithril.safetensors.compress_bytes(raw, effort=effort, threads=threads))
            assert mithril.safetensors.decompress_bytes(path.read_bytes()) == raw
        by_package[place] = path.read_bytes()
        if state is not None:
            check(mithril.safetensors.load_file(path), state)
            with pytest.raises(FileExistsError):
                mithril.safetensors.compress_file(source / place, path)
    # One run of the command for all of them.
    back.mkdir()
    command("verify", *packed.iterdir())
    command("decompress", *packed.iterdir(), "-o", back)
    assert contents(back) == {str(number): raw for number, (raw, _) in enumerate(tree.values())}

    # And back: one run packs the directory, another restores it.
    command("compress", source, "-o", root / "whole", "--effort", data.draw(st.sampled_from(EFFORTS[1:])))
    for path in (root / "whole").rglob("*.mckp"):
        place = str(path.relative_to(root / "whole")).removesuffix(".mckp").removesuffix(".1")
        raw, state = tree.get(place, (b"", None))
        # What lies in another file of the directory is looked for beside it, which is not where all of them are.
        if path != root / "whole" / "files.mckp" and not mithril.model_delta.is_model_delta(path.read_bytes()):
            check(mithril.safetensors.load_file(path), state)
            mithril.safetensors.decompress_file(path, root / "restored", overwrite=True)
            assert (root / "restored").read_bytes() == raw
    command("decompress", root / "whole", "-o", root / "again")
    assert contents(root / "again") == {place: raw for place, (raw, _) in tree.items()}
    assert contents(source) == {place: raw for place, (raw, _) in tree.items()}
    assert contents(packed) == {f"{number}.mckp": blob for number, blob in enumerate(by_package.values())}


@given(states(), st.data())
@settings(settings.get_profile("trees"), max_examples=1000 if IS_FULL else 40)
def test_states_that_are_saved_are_the_files_of_safetensors_and_come_back(tmp_path_factory, state, data):
    root = tmp_path_factory.mktemp("states")
    metadata = data.draw(st.sampled_from([None, {"format": "np", "note": "ünï"}]))
    effort = data.draw(st.sampled_from(EFFORTS))
    base, fine = root / "base.safetensors", root / "fine.safetensors"
    mithril.safetensors.save_file(state, base, metadata, effort=effort)
    check(mithril.safetensors.load_file(base), state)
    check(mithril.safetensors.load(base.read_bytes()), state)
    plain = mithril.safetensors.decompress_bytes(base.read_bytes())
    check_plain(plain, state)
    check(mithril.safetensors.load(mithril.safetensors.save(state, metadata, effort=effort)), state)
    with mithril.safetensors.safe_open(base, "np") as file:
        assert file.metadata() == metadata
        for name, array in state.items():
            assert file.get_tensor(name).tobytes() == array.tobytes()
            if array.ndim and array.shape[0]:
                start = data.draw(st.integers(0, array.shape[0] - 1))
                assert file.get_slice(name)[start:].tobytes() == array[start:].tobytes()

    after = tuned(data.draw, state)
    mithril.safetensors.save_file(after, fine, base=base, effort=effort)
    check(mithril.safetensors.load_file(fine, base=base), after)
    file = mithril.safetensors.decompress_bytes(fine.read_bytes(), base=base.read_bytes())
    check_plain(file, after)
    delta = mithril.model_delta.compress(file, plain, effort=effort)
    assert mithril.model_delta.decompress(delta, base.read_bytes()) == file
    if data.draw(st.integers(0, 3)) == 0:
        stored = json.loads(command("inspect", fine, "--json"))["tensors"]
        alone = root / "elsewhere" / "fine.safetensors"
        alone.parent.mkdir()
        alone.write_bytes(fine.read_bytes())
        # Away from its base it is loaded if it needs none, and else refused for that reason.
        if any(tensor["kind"] in ("copy", "delta") for tensor in stored):
            with pytest.raises(mithril.BaseMismatchError):
                mithril.safetensors.load_file(alone)
        else:
            check(mithril.safetensors.load_file(alone), after)


@given(states(), st.data())
@settings(settings.get_profile("trees"), max_examples=3000 if IS_FULL else 100)
def test_damaged_models_give_right_arrays_or_are_refused(state, data):
    blob = bytearray(mithril.safetensors.save(state))
    if data.draw(st.booleans()):
        blob = blob[: data.draw(st.integers(0, len(blob) - 1))]
    else:
        blob[data.draw(st.integers(0, len(blob) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((mithril.MithrilError, ValueError)):
        mithril.safetensors.decompress_bytes(blob)
    try:
        loaded = mithril.safetensors.load(blob)
    except (mithril.MithrilError, ValueError):
        return
    # Some damage touches no array: glue, or what only repairs read.
    check(loaded, state)


@given(trees(), st.data())
@settings(settings.get_profile("trees"), max_examples=1000 if IS_FULL else 50)
def test_any_bytes_come_back_by_every_function_that_takes_bytes(tree, data):
    for raw, state in tree.values():
        dtype = data.draw(st.sampled_from([None, "bf16", "fp32", "u8", "i64"]))
        blob = mithril.compress(raw, dtype=dtype, level=data.draw(st.sampled_from([None, 1, 9])))
        assert mithril.decompress(blob) == raw
        out = bytearray(len(raw))
        mithril.decompress(blob, out=out)
        assert out == raw
        assert mithril.chunked.decompress(mithril.chunked.compress(raw, dtype=dtype, chunk_size=1 << 15)) == raw
        assert mithril.is_mithril(blob) and not mithril.is_mithril(raw)
        assert is_opened(raw) == (state is not None)
        if data.draw(st.integers(0, 5)) == 0:
            assert command("decompress", "-", stdin=blob) == raw
