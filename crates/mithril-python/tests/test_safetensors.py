"""The mirror of the package `safetensors`, side by side with the real one on the same files."""

import json
import os

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

import mithril
import mithril.safetensors
import mithril.safetensors.numpy
import mithril.safetensors.torch

RNG = np.random.default_rng(2)
ARRAYS = {
    "embedding": RNG.standard_normal((40, 30)).astype(np.float32),
    "half": RNG.standard_normal((3, 4, 5)).astype(np.float16),
    "ids": np.arange(12, dtype=np.int64),
    "scalar": np.array(2.5, np.float64),
    "nothing": np.zeros((0, 7), np.float32),
    "flags": RNG.integers(0, 2, 9).astype(bool),
    'é "quoted"': np.arange(4, dtype=np.uint16),
}
METADATA = {"format": "np", "note": "ünïcode"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same tensors in a plain file, a packed one, and one that was packed when it was saved."""
    folder = tmp_path_factory.mktemp("files")
    plain, packed, saved = (folder / name for name in ("plain.safetensors", "packed.mckp", "saved.safetensors"))
    safetensors.numpy.save_file(ARRAYS, plain, METADATA)
    mithril.safetensors.compress_file(plain, packed)
    mithril.safetensors.numpy.save_file(ARRAYS, saved, METADATA)
    return plain, packed, saved


def outcome(call):
    """What a call gives: a value that compares, or the kind of its exception."""
    try:
        value = call()
    except (safetensors.SafetensorError, mithril.safetensors.SafetensorError):
        return "SafetensorError"
    except Exception as error:
        return type(error)
    return comparable(value)


def comparable(value):
    if isinstance(value, torch.Tensor):
        flat = value.contiguous().reshape(-1).view(torch.uint8)
        return "torch", str(value.dtype), tuple(value.shape), flat.numpy().tobytes()
    if isinstance(value, np.ndarray):
        return "numpy", str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    return value


CALLS = [
    lambda file: file.keys(),
    lambda file: file.offset_keys(),
    lambda file: file.metadata(),
    lambda file: file.get_tensors(),
    lambda file: list(file.get_tensors()),
    lambda file: file.get_tensor("missing"),
    lambda file: file.get_slice("missing"),
    lambda file: file.get_slice("embedding").get_shape(),
    lambda file: file.get_slice("embedding").get_dtype(),
    lambda file: file.get_slice("scalar").get_shape(),
    *[lambda file, name=name: file.get_tensor(name) for name in ARRAYS],
    # The package cannot slice an array of nothing.
    *[lambda file, name=name: file.get_slice(name)[...] for name in ARRAYS if name != "nothing"],
]
INDICES = [
    slice(None),
    slice(3, 9),
    slice(0, 40),
    slice(5, 5),
    slice(2, 30, 7),
    slice(7, None),
    slice(None, 4),
    0,
    39,
    -1,
    -40,
    np.int64(3),
    (3, 4),
    (slice(2, 8), 3),
    (slice(None), slice(4, 6)),
    (slice(1, 9, 3), slice(0, 30, 11)),
    (..., slice(1, 2)),
    (..., 5),
    (2, ...),
    ...,
    (),
]
BAD_INDICES = [40, -41, (1, 2, 3), 1.0, "x", (slice(None), 99), slice(None, None, -1)]


@pytest.mark.parametrize("which", [0, 1, 2], ids=["plain", "packed", "saved"])
@pytest.mark.parametrize("framework", ["np", "pt"])
def test_open_files_answer_like_the_package(files, framework, which):
    with (
        safetensors.safe_open(files[0], framework=framework) as theirs,
        mithril.safetensors.safe_open(files[which], framework=framework) as ours,
    ):
        for number, call in enumerate(CALLS):
            assert outcome(lambda: call(ours)) == outcome(lambda: call(theirs)), number
        for index in [*INDICES, *BAD_INDICES]:
            for name in ("embedding", "half", "scalar"):
                expected = outcome(lambda: theirs.get_slice(name)[index])
                assert outcome(lambda: ours.get_slice(name)[index]) == expected, (name, index)
    for call in CALLS[:6]:
        assert outcome(lambda: call(ours)) == outcome(lambda: call(theirs)) == "SafetensorError"


@pytest.mark.parametrize("framework", ["pt"])
def test_torch_takes_its_own_indices(files, framework):
    indices = [
        slice(-3, None),
        slice(2, 1),
        slice(50, 60),
        slice(0, 100),
        [0, 2],
        (slice(None), [1, 3]),
        (None, 1),
        True,
    ]
    with (
        safetensors.safe_open(files[0], framework=framework) as theirs,
        mithril.safetensors.safe_open(files[1], framework=framework) as ours,
    ):
        for index in indices:
            expected = outcome(lambda: theirs.get_slice("embedding")[index])
            assert outcome(lambda: ours.get_slice("embedding")[index]) == expected, index


def test_what_cannot_be_opened_has_the_same_exception(files, tmp_path):
    data = files[0].read_bytes()
    cases = {"bad": b"hello world, this is no model", "empty": b"", "cut": data[:-3], "long header": b"\xff" * 8 + data}
    paths = [tmp_path / "absent", tmp_path]
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        paths.append(tmp_path / name)
    for path in paths:
        expected = outcome(lambda: safetensors.safe_open(path, framework="np"))
        found = outcome(lambda: mithril.safetensors.safe_open(path, framework="np"))
        if path == tmp_path:
            assert issubclass(found, OSError) and issubclass(expected, OSError)
        else:
            assert found == expected, path
    arguments = [
        {"framework": "xx"},
        {"framework": None},
        {"framework": "np", "device": "cuda:0"},
        {"framework": "pt", "device": "zzz"},
        {"framework": "np", "backend": "zz"},
        {},
    ]
    for keywords in arguments:
        expected = outcome(lambda: safetensors.safe_open(files[0], **keywords))
        found = outcome(lambda: mithril.safetensors.safe_open(files[0], **keywords))
        assert found == expected, keywords
    assert outcome(lambda: mithril.safetensors.safe_open(5, framework="np")) is TypeError


def test_saved_files_restore_to_what_the_package_writes(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    # One text: the package writes several in an order of its own, another each time.
    for metadata in (None, {"format": "np"}):
        mithril.safetensors.numpy.save_file(ARRAYS, ours, metadata)
        safetensors.numpy.save_file(ARRAYS, theirs, metadata)
        mithril.safetensors.decompress_file(ours, tmp_path / "restored", overwrite=True)
        assert (tmp_path / "restored").read_bytes() == theirs.read_bytes()
    assert mithril.safetensors.decompress_bytes(mithril.safetensors.save({})) == safetensors.numpy.save({})
    assert mithril.safetensors.load(mithril.safetensors.save({})) == {}


def test_arrays_are_saved_by_value_whatever_their_order():
    square = np.arange(12, dtype=np.float32).reshape(3, 4)
    odd = {"fortran": np.asfortranarray(square), "strided": square[:, ::2], "big-endian": square.astype(">f4")}
    loaded = mithril.safetensors.numpy.load(mithril.safetensors.numpy.save(odd))
    for name, array in odd.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].dtype == np.float32


def test_bad_input_is_refused_like_in_the_package():
    shared = torch.arange(10.0)
    cases = [
        {"a": shared, "b": shared},
        {"a": shared, "b": shared[2:]},
        {"a": torch.zeros(4, 6).t()},
        {"a": shared[::2]},
        {"a": np.zeros(2)},
        {"a": {"b": shared}},
        {"a": torch.zeros(2, 2).to_sparse()},
        [shared],
        {1: shared},
    ]
    for case in cases:
        expected = outcome(lambda: safetensors.torch.save(case))
        assert outcome(lambda: mithril.safetensors.torch.save(case)) == expected, case
    with pytest.raises(TypeError):
        mithril.safetensors.torch.save({"a": shared}, metadata={"step": 1})
    with pytest.raises(TypeError):
        mithril.safetensors.numpy.save({"a": [1, 2]})
    with pytest.raises(TypeError):
        mithril.safetensors.numpy.load("text")
    views = {"a": shared[:5], "b": shared[5:]}
    assert outcome(lambda: mithril.safetensors.torch.load(mithril.safetensors.torch.save(views))) == comparable(views)


def test_tied_weights_of_a_module_are_saved_once(tmp_path):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(20, 20, bias=False)
            self.b = torch.nn.Linear(20, 20, bias=False)
            self.b.weight = self.a.weight

    path, theirs = tmp_path / "model", tmp_path / "theirs"
    module, other = Tied(), Tied()
    mithril.safetensors.torch.save_model(module, path)
    safetensors.torch.save_model(module, theirs)
    with mithril.safetensors.safe_open(path, "pt") as ours, safetensors.safe_open(theirs, "pt") as expected:
        assert ours.keys() == expected.keys()
        assert ours.metadata() == expected.metadata()
    assert mithril.safetensors.torch.load_model(other, path) == ([], [])
    assert torch.equal(other.b.weight, module.a.weight)
    with pytest.raises(RuntimeError, match="Missing key"):
        mithril.safetensors.torch.load_model(torch.nn.Linear(2, 2), path)
    missing, unexpected = mithril.safetensors.torch.load_model(torch.nn.Linear(2, 2), path, strict=False)
    assert (set(missing), unexpected) == ({"weight", "bias"}, ["a.weight"])


TORCH_TYPES = [
    torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.int64, torch.uint8, torch.bool,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64,
]  # fmt: skip


@pytest.mark.parametrize("dtype", TORCH_TYPES, ids=str)
def test_types_of_torch_come_back(dtype, tmp_path):
    tensors = {"w": (torch.randn(17, 9) * 3).to(dtype), "scalar": torch.tensor(1.0).to(dtype)}
    path = tmp_path / "model"
    mithril.safetensors.torch.save_file(tensors, path)
    assert comparable(mithril.safetensors.torch.load_file(path)) == comparable(tensors)
    assert mithril.safetensors.decompress_bytes(path.read_bytes()) == safetensors.torch.save(tensors)


def test_jax_and_mlx_arrays_come_back(tmp_path):
    import jax.numpy as jnp
    import mlx.core as mx

    import mithril.safetensors.flax
    import mithril.safetensors.mlx

    path = tmp_path / "model"
    for dtype in (jnp.bfloat16, jnp.float32, jnp.int32, jnp.float8_e4m3fn):
        tensors = {"w": jnp.asarray(RNG.standard_normal((5, 6)), dtype), "s": jnp.asarray(1, dtype)}
        mithril.safetensors.flax.save_file(tensors, path)
        loaded = mithril.safetensors.flax.load_file(path)
        assert {name: type(array) for name, array in loaded.items()} == {n: type(a) for n, a in tensors.items()}
        assert comparable({n: np.asarray(a) for n, a in loaded.items()}) == comparable(
            {n: np.asarray(a) for n, a in tensors.items()}
        )
    for dtype in (mx.bfloat16, mx.float32, mx.int32, mx.bool_, mx.complex64):
        tensors = {"w": mx.array(RNG.standard_normal((5, 6))).astype(dtype), "s": mx.array(1).astype(dtype)}
        mithril.safetensors.mlx.save_file(tensors, path)
        loaded = mithril.safetensors.mlx.load(path.read_bytes())
        for name, array in tensors.items():
            assert (loaded[name].dtype, loaded[name].shape) == (array.dtype, array.shape)
            assert mx.array_equal(loaded[name], array)


def test_reader_reads_single_tensors(files):
    for path in files:
        with mithril.safetensors.Reader.open(path) as reader:
            assert len(reader) == len(ARRAYS)
            assert sorted(reader.names()) == sorted(ARRAYS)
            assert "ids" in reader
            assert reader.metadata() == METADATA
            assert reader.header()["ids"]["dtype"] == "I64"
            assert reader.shape("half") == (3, 4, 5)
            for name, array in ARRAYS.items():
                assert reader.read_raw(name) == array.tobytes()
                assert comparable(reader.read_numpy(name)) == comparable(array)
                assert 0 <= reader.frame_size(name) <= array.nbytes + 200
            with pytest.raises(mithril.NotFoundError):
                reader.read_raw("missing")
        with pytest.raises(ValueError, match="closed"):
            reader.names()
    reader = mithril.safetensors.Reader.from_bytes(files[1].read_bytes())
    assert reader.read_raw("ids") == ARRAYS["ids"].tobytes()


def test_types_that_numpy_lacks_are_those_of_ml_dtypes():
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu):
        array = RNG.uniform(1, 2, (4, 4)).astype(dtype)
        reader = mithril.safetensors.Reader.from_bytes(mithril.safetensors.save({"w": array}))
        assert comparable(reader.read_numpy("w")) == comparable(array)


def test_bases_make_files_smaller(tmp_path):
    base, tuned = tmp_path / "base.safetensors", tmp_path / "tuned.safetensors"
    weights = RNG.standard_normal((300, 100)).astype(np.float32)
    safetensors.numpy.save_file({"w": weights, "same": weights[:50].copy()}, base)
    safetensors.numpy.save_file({"w": weights * np.float32(1.00001), "same": weights[:50].copy()}, tuned)
    alone = mithril.safetensors.compress_bytes(tuned.read_bytes())
    blob = mithril.model_delta.compress(tuned.read_bytes(), base.read_bytes())
    assert len(blob) < len(alone) * 0.7
    assert mithril.model_delta.is_model_delta(blob)
    assert not mithril.model_delta.is_model_delta(alone)
    assert not mithril.model_delta.is_model_delta(b"")
    assert mithril.model_delta.decompress(blob, base.read_bytes()) == tuned.read_bytes()
    with pytest.raises(mithril.BaseMismatchError):
        mithril.model_delta.decompress(blob, tuned.read_bytes())

    told = []
    packed, restored = tmp_path / "tuned.mckp", tmp_path / "restored"
    sizes = mithril.model_delta.compress_file(tuned, base, packed, progress=lambda *step: told.append(step))
    assert sizes["original"] == tuned.stat().st_size and sizes["stored"] == packed.stat().st_size
    assert told[-1] == (sizes["original"], sizes["original"], "w")
    mithril.model_delta.decompress_file(packed, base, restored, progress=True)
    assert restored.read_bytes() == tuned.read_bytes()
    with (
        mithril.safetensors.safe_open(packed, "np") as beside,
        mithril.safetensors.safe_open(packed, "np", base=base) as given,
    ):
        np.testing.assert_array_equal(beside.get_tensor("w"), given.get_tensor("w"))
    os.rename(base, tmp_path / "elsewhere")
    with mithril.safetensors.safe_open(packed, "np") as file, pytest.raises(mithril.BaseMismatchError, match="`w`"):
        file.get_tensor("w")
    mithril.safetensors.numpy.save_file({"w": weights}, tmp_path / "saved", base=tmp_path / "elsewhere")
    assert (tmp_path / "saved").stat().st_size < 3000


def test_damage_names_the_tensor(files, tmp_path):
    data = bytearray(files[1].read_bytes())
    with mithril.safetensors.Reader.open(files[1]) as reader:
        size = reader.frame_size("embedding")
    damaged = None
    for at in range(200, len(data) - 200, 97):
        changed = bytearray(data)
        changed[at] ^= 0x10
        try:
            reader = mithril.safetensors.Reader.from_bytes(changed)
            if reader.read_raw("embedding") != ARRAYS["embedding"].tobytes():
                pytest.fail("wrong bytes")
        except mithril.MithrilError as error:
            damaged = damaged or ("embedding" in str(error) and error)
    assert size > 1000 and damaged


def test_progress_may_end_the_work(files, tmp_path):
    def refuse(done, total, name):
        raise KeyError("enough")

    out = tmp_path / "out"
    with pytest.raises(KeyError, match="enough"):
        mithril.safetensors.compress_file(files[0], out, progress=refuse)
    assert json.dumps(sorted(os.listdir(tmp_path))) in ("[]", '["out"]')


def test_modes_and_times_are_kept_as_compressors_keep_them(files, tmp_path):
    source, packed, restored = (tmp_path / name for name in ("source", "packed", "restored"))
    source.write_bytes(files[0].read_bytes())
    for mode in (0o600, 0o640, 0o444):
        source.chmod(mode)
        os.utime(source, ns=(1, 1_500_000_000_123_456_789))
        mithril.safetensors.compress_file(source, packed, overwrite=True)
        mithril.safetensors.decompress_file(packed, restored, overwrite=True)
        for made in (packed, restored):
            assert made.stat().st_mode & 0o777 == mode
            assert made.stat().st_mtime_ns == 1_500_000_000_123_456_789


def test_existing_output_is_refused_unless_it_may_be_overwritten(files, tmp_path):
    out, back, plain = tmp_path / "out", tmp_path / "back", str(files[0])
    out.write_bytes(b"old")
    back.write_bytes(b"old")
    delta = mithril.model_delta
    for overwritten, calls in {
        out: [
            lambda **options: mithril.safetensors.compress_file(plain, out, **options),
            lambda **options: delta.compress_file(plain, plain, out, **options),
        ],
        back: [
            lambda **options: delta.decompress_file(out, plain, back, **options),
            lambda **options: mithril.safetensors.decompress_file(out, back, base=plain, **options),
        ],
    }.items():
        for call in calls:
            before = overwritten.read_bytes()
            with pytest.raises(FileExistsError, match="overwrite=True") as refused:
                call()
            assert refused.value.filename == str(overwritten) and overwritten.read_bytes() == before
            call(overwrite=True)
            assert overwritten.read_bytes() != b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "out"]
    assert back.read_bytes() == files[0].read_bytes()


def test_bad_places_are_refused(files, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(FileNotFoundError):
        mithril.safetensors.compress_file(files[0], tmp_path / "no" / "such")
    with pytest.raises(FileNotFoundError):
        mithril.safetensors.compress_file(tmp_path / "absent", out)
    with pytest.raises(mithril.UnsupportedError):
        mithril.safetensors.compress_bytes(b"no model")
    with pytest.raises(mithril.MithrilError):
        mithril.safetensors.decompress_bytes(b"MCKP but no container")
