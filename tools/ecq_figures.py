"""Sizes of entropy-coded quantised models: quantises a float model with the real MLX, codes it, takes it back.

    python3 tools/ecq_figures.py --venv VENV --mithril PROGRAM MODEL.safetensors [FILE.gguf ...]

MODEL is a safetensors file of floats; its matrices are quantised by the `mlx` package in every mode and width. GGUF files
are coded as they are. Every file must come back byte for byte, or the script fails. Needs `mlx[cpu]`, which it installs
into VENV.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

MODES = [
    ("affine", 4, 64), ("affine", 4, 32), ("affine", 4, 128), ("affine", 3, 64), ("affine", 2, 64),
    ("affine", 5, 64), ("affine", 6, 64), ("affine", 8, 64), ("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16),
]  # fmt: skip

MAKE = """
import json, os, sys
import mlx.core as mx
model, root = sys.argv[1], sys.argv[2]
weights = mx.load(model)
for mode, bits, group in json.loads(sys.argv[3]):
    tensors = {}
    for name, weight in weights.items():
        is_matrix = name.endswith(".weight") and weight.ndim == 2 and weight.shape[1] % 128 == 0
        is_float = weight.dtype in (mx.float32, mx.float16, mx.bfloat16)
        if is_matrix and is_float and weight.size > 10000:
            parts = mx.quantize(weight.astype(mx.bfloat16), group_size=group, bits=bits, mode=mode)
            for suffix, part in zip(("weight", "scales", "biases"), parts):
                tensors[name.removesuffix("weight") + suffix] = part
        else:
            tensors[name] = weight.astype(mx.bfloat16) if is_float else weight
    path = os.path.join(root, f"{mode}{bits}-g{group}")
    os.makedirs(path)
    mx.save_safetensors(os.path.join(path, "model.safetensors"), tensors, metadata={"format": "mlx"})
    with open(os.path.join(path, "config.json"), "w") as file:
        json.dump({"quantization": {"group_size": group, "bits": bits, "mode": mode}}, file)
"""


def python(venv: pathlib.Path) -> pathlib.Path:
    """The interpreter of an environment with MLX."""
    program = venv / "bin" / "python"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([program, "-m", "pip", "install", "--quiet", "mlx[cpu]"], check=True)
    return program


def same(a: pathlib.Path, b: pathlib.Path) -> bool:
    """Whether two files hold the same bytes."""
    return a.read_bytes() == b.read_bytes()


def figures(mithril: pathlib.Path, model: pathlib.Path, back: str, work: pathlib.Path) -> None:
    """Codes a model, takes it back, prints its sizes."""
    coded, restored = work / "coded", work / "restored"
    convert = [mithril, "convert", model, "--to", "ecq", "-o", coded, "--json"]
    result = json.loads(subprocess.run(convert, check=True, capture_output=True, text=True).stdout)
    subprocess.run([mithril, "convert", coded, "--to", back, "-o", restored, "--json"], check=True, capture_output=True)
    originals = [path for path in model.iterdir() if path.is_file()] if model.is_dir() else [model]
    for original in originals:
        if not same(original, restored / original.name):
            sys.exit(f"{original} does not come back")
    for kind in result["kinds"]:
        matrices, raw, small = kind["n_matrices"], kind["raw_bytes"], kind["coded_bytes"]
        print(f"{model.name:<36} {kind['kind']:<32} {matrices:>4} {raw:>11} {small:>11} {kind['ratio']:.4f}", flush=True)


def main() -> None:
    """Prints a line for every kind of matrix."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=pathlib.Path, required=True)
    parser.add_argument("--mithril", type=pathlib.Path, required=True)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    print(f"{'model':<36} {'kind':<32} {'n':>4} {'raw':>11} {'coded':>11} ratio")
    for file in arguments.files:
        with tempfile.TemporaryDirectory() as root:
            work = pathlib.Path(root)
            if file.suffix == ".gguf":
                figures(arguments.mithril.resolve(), file, "gguf", work)
                continue
            made = [python(arguments.venv), "-c", MAKE, file, work / "models", json.dumps(MODES)]
            subprocess.run(made, check=True)
            for model in sorted((work / "models").iterdir()):
                place = work / model.name
                place.mkdir()
                figures(arguments.mithril.resolve(), model, "mlx", place)


if __name__ == "__main__":
    main()
