"""Sizes of entropy-coded K blocks: quantises float models with ggml's own quantiser, codes them, takes them back.

    python3 tools/ecq_ggml.py --venv VENV --mithril PROGRAM MODEL.safetensors ...

MODEL is a safetensors file of floats; each of its matrices whose rows are whole K blocks (256 weights) is quantised by
`ggml_quantize_chunk`, the function behind every published GGUF file, of the library that the npm package
`@node-llama-cpp/linux-x64` carries. Every file must come back byte for byte, or the script fails. Needs `npm`, and
`gguf`, `numpy`, `ml_dtypes` and `safetensors`, which it installs into VENV.
"""

import argparse
import pathlib
import subprocess
import sys
import tarfile
import tempfile

from ecq_figures import figures

KINDS = ["Q4_K", "Q5_K", "Q6_K", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]

MAKE = """
import ctypes, pathlib, sys
import gguf, numpy
from safetensors.numpy import load_file
import ml_dtypes
library, model, root, kinds = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]), sys.argv[4].split(",")
ggml = ctypes.CDLL(library)
quantize = ggml.ggml_quantize_chunk
quantize.restype = ctypes.c_size_t
quantize.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
floats = (numpy.float32, numpy.float16, ml_dtypes.bfloat16)
matrices = {}
for name, weight in sorted(load_file(model).items()):
    if weight.ndim == 2 and weight.shape[1] % 256 == 0 and weight.size > 10000 and weight.dtype in floats:
        matrices[name] = numpy.ascontiguousarray(weight, dtype=numpy.float32)
for kind in kinds:
    dtype = gguf.GGMLQuantizationType[kind]
    per_block, block_len = gguf.GGML_QUANT_SIZES[dtype]
    writer = gguf.GGUFWriter(root / f"{pathlib.Path(model).stem}.{kind}.gguf", "ecq")
    for name, weight in matrices.items():
        rows, columns = weight.shape
        blocks = numpy.zeros((rows, columns // per_block * block_len), dtype=numpy.uint8)
        made = quantize(int(dtype), weight.ctypes.data, blocks.ctypes.data, 0, rows, columns, None)
        assert made == blocks.nbytes
        # What the quantiser made stands for the weights: its error is that of its bits.
        error = numpy.square(gguf.dequantize(blocks, dtype) - weight).sum() / numpy.square(weight).sum()
        assert error < 0.02, (name, kind, error)
        writer.add_tensor(name, blocks, raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
"""


def python(venv: pathlib.Path) -> pathlib.Path:
    """The interpreter of an environment that writes GGUF files."""
    program = venv / "bin" / "python"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    packages = ["gguf", "numpy", "ml_dtypes", "safetensors"]
    subprocess.run([program, "-m", "pip", "install", "--quiet", *packages], check=True)
    return program


def library(work: pathlib.Path) -> pathlib.Path:
    """ggml's library out of the npm package."""
    subprocess.run(["npm", "pack", "--silent", "@node-llama-cpp/linux-x64"], cwd=work, check=True, capture_output=True)
    (package,) = work.glob("*.tgz")
    with tarfile.open(package) as archive:
        archive.extractall(work, filter="data")
    (found,) = work.glob("package/bins/*/libggml-base.so")
    return found


def main() -> None:
    """Prints a line for every kind of block."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=pathlib.Path, required=True)
    parser.add_argument("--mithril", type=pathlib.Path, required=True)
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    program = python(arguments.venv)
    print(f"{'model':<36} {'kind':<32} {'n':>4} {'raw':>11} {'coded':>11} ratio", flush=True)
    with tempfile.TemporaryDirectory() as root:
        ggml = library(pathlib.Path(root))
        for model in arguments.models:
            files = pathlib.Path(root) / model.stem
            files.mkdir()
            subprocess.run([program, "-c", MAKE, ggml, model, files, ",".join(KINDS)], check=True)
            for file in sorted(files.iterdir()):
                place = pathlib.Path(root) / file.stem
                place.mkdir()
                figures(arguments.mithril.resolve(), file, "gguf", place)


if __name__ == "__main__":
    main()
