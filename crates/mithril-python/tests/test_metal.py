"""The kernels for Metal, compiled for the host, against codes that the reference reader decodes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import deserialize
from safetensors.numpy import load_file, save_file

import mithril
from mithril.mlx import _metal

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "docs" / "format"))
from reference_ecq import EcqFile, read_matrix  # noqa: E402

MAIN = """
int main(int, char** paths) {
    const auto params = read_array<uint>(paths[1]);
    const auto blocks = read_array<uint>(paths[2]);
    const auto data_array = read_array<uint8_t>(paths[3]);
    const auto low_array = read_array<uint8_t>(paths[4]);
    const auto slots_array = read_array<uint>(paths[5]);
    INPUT
    std::vector<uint> faults_array(blocks.size() / 8, 7);
    // `at` reads whatever the kernel asks for, and stops where the array ends.
    const Checked<const uint8_t> data{data_array.data(), data_array.size()}, low{low_array.data(), low_array.size()};
    const Checked<const uint> slots{slots_array.data(), slots_array.size()};
    OUTPUT
    const Checked<uint> faults{faults_array.data(), faults_array.size()};
    for (uint group = 0; group < blocks.size() / 8; ++group) {
        run_group([&](uint thread_index_in_simdgroup) {
            const Position threadgroup_position_in_grid{group, 0, 0};
#include "KERNEL.metal"
        });
    }
    WRITE
}
"""

# What differs between the kernels.
GEMV = {
    "INPUT": """const auto factors_array = read_array<int32_t>(paths[6]);
    std::vector<int32_t> sums_array(params[2], 0x55555555);""",
    "OUTPUT": """const Checked<const int32_t> factors{factors_array.data(), factors_array.size()};
    const Checked<int32_t> sums{sums_array.data(), sums_array.size()};""",
    "WRITE": "write_array(paths[7], sums_array); write_array(paths[8], faults_array);",
}
DECODE = {
    "INPUT": "std::vector<uint8_t> codes_array(size_t(params[2]) * params[6], 0x55);",
    "OUTPUT": "const Checked<uint8_t> codes{codes_array.data(), codes_array.size()};",
    "WRITE": "write_array(paths[6], codes_array); write_array(paths[7], faults_array);",
}

CHECKED = """
template <typename T> struct Checked {
    T* first;
    size_t len;
    T& operator[](size_t at) const {
        if (at >= len) {
            std::fprintf(stderr, "element %zu of %zu\\n", at, len);
            std::exit(4);
        }
        return first[at];
    }
};
"""


def compiled(place: Path, name: str, texts: dict[str, str]) -> Path:
    """A kernel as a program."""
    compiler = shutil.which("c++") or shutil.which("g++")
    assert compiler, "a C++ compiler is part of what building mithril needs"
    (place / f"{name}.metal").write_text(_metal.source(name))
    main = MAIN.replace("KERNEL", name)
    for mark, text in texts.items():
        main = main.replace(mark, text)
    (place / "main.cpp").write_text(f'#include "metal_shim.hpp"\n{CHECKED}\n{main}')
    shutil.copy(Path(__file__).with_name("metal_shim.hpp"), place)
    warnings = ["-Wall", "-Wextra", "-Wno-sign-compare", "-Wno-parentheses", "-Werror"]
    subprocess.run([compiler, "-std=c++17", "-O1", *warnings, "main.cpp", "-o", "kernel"], cwd=place, check=True)
    return place / "kernel"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernel that multiplies."""
    return compiled(tmp_path_factory.mktemp("metal"), "ecq_gemv", GEMV)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernel that decodes."""
    return compiled(tmp_path_factory.mktemp("metal"), "ecq_decode", DECODE)


def run(kernel: Path, arrays: dict[str, np.ndarray], rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Sums and faults."""
    sums, faults = execute(kernel, arrays, _metal.INPUTS, _metal.OUTPUTS)
    assert sums.size == 4 * rows
    return sums.view(np.int32), faults


def execute(
    kernel: Path, arrays: dict[str, np.ndarray], inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of the first output, and the faults."""
    paths = []
    for name in inputs:
        paths.append(kernel.parent / name)
        paths[-1].write_bytes(arrays[name].tobytes())
    paths += [kernel.parent / name for name in outputs]
    subprocess.run([kernel, *paths], check=True, timeout=60)
    return np.frombuffer(paths[-2].read_bytes(), np.uint8), np.frombuffer(paths[-1].read_bytes(), np.uint32)


def matrices(place: Path, bits: float) -> tuple[Path, dict[str, np.ndarray]]:
    """A quantised model of three matrices."""
    random = np.random.default_rng(3)
    weights = {
        "a.weight": random.normal(size=(70, 200)).astype(np.float32),
        "b.weight": random.normal(size=(600, 96)).astype(np.float32),
        "c.weight": random.normal(size=(9, 1024)).astype(np.float32),
    }
    weights["a.weight"][3, 5] = 1e6
    # Some rows of one matrix are all alike.
    weights["b.weight"][:520] = 0.0
    (place / "model").mkdir()
    save_file(weights, place / "model" / "model.safetensors")
    command = ["mithril", "quantize", str(place / "model"), "--bpw", str(bits), "-o", str(place / "coded")]
    assert mithril._mithril.run_cli(command) == 0
    path = place / "coded" / "model.safetensors"
    return path, load_file(path)


def parts_of(tensors: dict[str, np.ndarray], name: str) -> dict[str, bytes]:
    """The tensors of a matrix."""
    names = ("compressed", "stream_offsets", "freq", "low_bits", "levels", "scales", "biases", "zero_codes")
    names += ("column_scales", "bias_residuals", "sub_scales", "sub_biases")
    return {part: tensors[f"{name}.{part}"].tobytes() for part in names if f"{name}.{part}" in tensors}


@pytest.mark.parametrize("bits", [1.5, 3.0, 4.0, 6.0])
def test_sums_are_those_of_the_decoded_codes(kernel: Path, tmp_path: Path, bits: float) -> None:
    path, tensors = matrices(tmp_path, bits)
    file = EcqFile(path.read_bytes())
    for name in ("a", "b", "c"):
        levels = _metal.Levels(parts_of(tensors, name))
        x = np.random.default_rng(5).integers(-127, 128, levels.columns).astype(np.int8)
        sums, faults = run(kernel, {**levels.arrays, "factors": levels.factors(x)}, levels.rows)
        codes = np.array(read_matrix(file, name).codes)
        wanted = levels.levels.astype(np.int64)[codes] @ x.astype(np.int64)
        assert not faults.any()
        assert np.array_equal(sums, wanted), name


def test_damage_is_a_fault_and_never_read_out_of_bounds(kernel: Path, tmp_path: Path) -> None:
    _, tensors = matrices(tmp_path, 3.0)
    levels = _metal.Levels(parts_of(tensors, "a"))
    x = np.ones(levels.columns, np.int8)
    factors = levels.factors(x)
    random = np.random.default_rng(7)
    n_faults = 0
    for _ in range(40):
        arrays = {name: array.copy() for name, array in levels.arrays.items()}
        start, end = int(arrays["blocks"][2]), arrays["data"].size
        arrays["data"][random.integers(start, end)] ^= 1 << random.integers(0, 8)
        if random.integers(0, 4) == 0:
            # A stream that lies about its place or its end.
            arrays["blocks"][random.integers(2, 5)] = random.integers(0, 2**32)
        _, faults = run(kernel, {**arrays, "factors": factors}, levels.rows)
        n_faults += bool(faults.any())
    assert n_faults > 30


@pytest.mark.parametrize("bits", [1.5, 3.0, 4.0, 6.0])
def test_codes_are_those_that_the_reference_decodes(decoder: Path, tmp_path: Path, bits: float) -> None:
    path, tensors = matrices(tmp_path, bits)
    file = EcqFile(path.read_bytes())
    for name in ("a", "b", "c"):
        check_codes(decoder, file, tensors, name)


def test_codes_of_every_layout_decode(decoder: Path) -> None:
    n_matrices, refused = 0, []
    for path in sorted((ROOT / "golden" / "ecq").glob("*.safetensors")):
        # By name and bytes: numpy does not know all of the types.
        held = {name: np.frombuffer(tensor["data"], np.uint8) for name, tensor in deserialize(path.read_bytes())}
        tensors = {name: array for name, array in held.items() if array.size}
        for name in (key.removesuffix(".compressed") for key in tensors if key.endswith(".compressed")):
            try:
                _metal.Codes(parts_of(tensors, name))
            except ValueError as error:
                # bf16 weights do not fit, and of some layouts the CPU's reader does not know what codes stand for.
                refused.append(str(error))
                continue
            check_codes(decoder, EcqFile(path.read_bytes()), tensors, name)
            n_matrices += 1
    assert n_matrices > 20
    assert len(refused) < 8
    assert all("bf16" in reason or "not decoded to floats" in reason for reason in refused)


def check_codes(decoder: Path, file: EcqFile, tensors: dict[str, np.ndarray], name: str) -> None:
    """Compares a matrix with what the reference reader makes of it."""
    matrix = _metal.Codes(parts_of(tensors, name))
    codes, faults = execute(decoder, matrix.arrays, _metal.DECODE_INPUTS, _metal.DECODE_OUTPUTS)
    assert not faults.any()
    wanted = np.array(read_matrix(file, name).codes)
    assert np.array_equal(codes.reshape(matrix.rows, matrix.columns), wanted.reshape(matrix.rows, matrix.columns)), name


def test_damaged_codes_are_a_fault(decoder: Path, tmp_path: Path) -> None:
    _, tensors = matrices(tmp_path, 3.0)
    matrix = _metal.Codes(parts_of(tensors, "a"))
    random = np.random.default_rng(8)
    n_faults = 0
    for _ in range(40):
        arrays = {name: array.copy() for name, array in matrix.arrays.items()}
        arrays["data"][random.integers(int(arrays["blocks"][2]), arrays["data"].size)] ^= 1 << random.integers(0, 8)
        if random.integers(0, 4) == 0:
            arrays["blocks"][random.integers(2, 5)] = random.integers(0, 2**32)
        _, faults = execute(decoder, arrays, _metal.DECODE_INPUTS, _metal.DECODE_OUTPUTS)
        n_faults += bool(faults.any())
    assert n_faults > 30


def test_other_matrices_and_vectors_are_refused(tmp_path: Path) -> None:
    _, tensors = matrices(tmp_path, 3.0)
    parts = parts_of(tensors, "a")
    levels = _metal.Levels(parts)
    for x in (np.ones(7, np.int8), np.ones(levels.columns, np.float32)):
        with pytest.raises(ValueError, match="activations"):
            levels.factors(x)
    with pytest.raises(mithril.MithrilError):
        _metal.Levels({**parts, "freq": bytes(16)})
    with pytest.raises(RuntimeError, match="no Metal"):
        levels.product(np.ones(levels.columns, np.int8))
    with pytest.raises(RuntimeError, match="no Metal"):
        levels.decode()
