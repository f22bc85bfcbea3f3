"""Compares DFloat11 directories of `mithril convert` with those of the official package, byte for byte.

    python3 tools/df11_oracle.py --venv .venv-df11 --mithril target/release/mithril [MODEL.safetensors ...]

Needs no GPU: the package's encoder runs on the CPU, and a stand-in takes the place of its GPU library. Random tensors
and a model of random weights are always compared; tensors and whole models of the files that are named as well. The
package's encoder is a loop in Python, so allow two seconds for a million weights. Exit code 0: everything is equal.
"""

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

PACKAGES = ["dahuffman==0.4.2", "safetensors", "tqdm", "huggingface_hub", "numpy", "psutil", "pyyaml", "setuptools<81"]
WITHOUT_DEPENDENCIES = ["dfloat11==0.5.0", "accelerate"]
PARTS = ["luts", "encoded_exponent", "sign_mantissa", "output_positions", "gaps", "split_positions"]


def enter_venv(directory):
    """Runs this script again inside an environment that has the package, which is made if need be."""
    python = Path(directory) / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    quiet = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    install_torch = Path(__file__).parent.parent / "scripts" / "install_torch.py"
    subprocess.run([str(python), str(install_torch)], check=True)
    if not has(python, "dahuffman, pkg_resources, accelerate"):
        subprocess.run([*quiet, *PACKAGES], check=True)
        subprocess.run([*quiet, "--no-deps", *WITHOUT_DEPENDENCIES], check=True)
    arguments = [argument for argument in sys.argv[1:] if argument not in ("--venv", directory)]
    os.execv(python, [str(python), __file__, *arguments])


def has(python, modules):
    return subprocess.run([str(python), "-c", f"import {modules}"], capture_output=True, check=False).returncode == 0


def import_package():
    """The official package, with something in the place of its GPU library that is never called."""
    stand_in = types.ModuleType("cupy")
    stand_in.RawModule = lambda **_: types.SimpleNamespace(get_function=lambda _: None)
    sys.modules["cupy"] = stand_in
    from dfloat11 import dfloat11, dfloat11_utils

    return dfloat11, dfloat11_utils


@contextlib.contextmanager
def silence():
    """Nothing on stdout and stderr, not even from what keeps the streams of its start."""
    streams = [sys.stdout, sys.stderr]
    for stream in streams:
        stream.flush()
    kept = [os.dup(number) for number in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in (1, 2):
            os.dup2(nowhere, number)
        yield
    finally:
        for stream in streams:
            stream.flush()
        for number, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)
        os.close(nowhere)


class Oracle:
    def __init__(self, mithril, scratch):
        import torch

        self.torch = torch
        self.mithril = mithril
        self.scratch = Path(scratch)
        self.package, self.encoder = import_package()
        self.n_compared = 0
        self.n_kept = 0
        self.official_seconds = 0.0
        self.official_elements = 0

    def convert(self, source, *options):
        directory = self.scratch / f"ours-{time.monotonic_ns()}"
        command = [self.mithril, "convert", str(source), "-o", str(directory), *options]
        subprocess.run(command, check=True, capture_output=True)
        return directory

    def encode_officially(self, weight):
        """The six tensors of a weight, or nothing where the package fails or writes what cannot be read back."""
        flat = weight.flatten()
        with silence():
            try:
                _, counter = self.encoder.get_codec(flat)
                codec, _, table = self.encoder.get_32bit_codec(counter)
                luts = self.encoder.get_luts(table)
            except (UnboundLocalError, ValueError):
                return None
            if max(counter) >= 240 or luts.shape[0] - 1 > 17:
                return None
            threads = self.package.threads_per_block[0]
            coded = self.encoder.encode_weights([flat], codec, self.package.bytes_per_thread, threads)
        encoded, sign_mantissa, positions, gaps, splits = coded
        positions = positions.view(self.torch.uint8)
        return dict(zip(PARTS, [luts, encoded, sign_mantissa, positions, gaps, splits], strict=True))

    def compare_tensors(self, weights, what):
        """Encodes weights here and there, each alone; they must agree on every byte, and on what cannot be coded."""
        from safetensors.torch import load_file, save_file

        source = self.scratch / "tensors.safetensors"
        save_file({f"{name}.weight": weight for name, weight in weights.items()}, source)
        ours = load_file(self.convert(source, "--to", "df11", "--save-single-file") / "model.safetensors")
        n_coded = 0
        for name, weight in weights.items():
            started = time.process_time()
            official = self.encode_officially(weight)
            self.official_seconds += time.process_time() - started
            self.official_elements += weight.numel()
            if official is None:
                if not self.torch.equal(ours[f"{name}.weight"].view(self.torch.int16), weight.view(self.torch.int16)):
                    raise SystemExit(f"{what}: `{name}` should have been kept as it is")
                self.n_kept += 1
                continue
            for part, tensor in official.items():
                if not self.torch.equal(ours[f"{name}.{part}"], tensor):
                    raise SystemExit(f"{what}: `{name}.{part}` differs")
            n_coded += 1
        self.n_compared += n_coded
        print(f"{what}: {n_coded} equal, {len(weights) - n_coded} kept by both", flush=True)

    def build(self, tensors):
        """A module tree with these tensors: matrices are Linear layers, the rest plain parameters."""
        nn = self.torch.nn
        root = nn.Module()
        parents = {}
        for name in sorted(tensors):
            parents.setdefault(name.rpartition(".")[0], {})[name.rpartition(".")[2]] = tensors[name]
        for path, own in sorted(parents.items()):
            node = root
            *above, last = path.split(".") if path else [""]
            for step in above:
                if step not in dict(node.named_children()):
                    node.add_module(step, nn.Module())
                node = getattr(node, step)
            if "weight" in own and own["weight"].ndim == 2:
                leaf = nn.Linear(own["weight"].shape[1], own["weight"].shape[0], bias="bias" in own, device="meta")
            else:
                leaf = nn.Module()
            if path:
                node.add_module(last, leaf)
            target = leaf if path else root
            for key, tensor in own.items():
                target.register_parameter(key, nn.Parameter(tensor, requires_grad=False))
        return root

    def compare_model(self, source, patterns=None):
        """Encodes a whole model here and there, in one file and in several, and decodes what the package wrote."""
        from safetensors.torch import load_file

        options = [f"--pattern={regex}={','.join(names)}" for regex, names in (patterns or {}).items()]
        for single in (True, False):
            ours = self.convert(source, "--to", "df11", *options, *(["--save-single-file"] if single else []))
            config = json.loads((ours / "config.json").read_text())
            chosen = config["dfloat11_config"]["pattern_dict"]
            official = self.scratch / f"official-{time.monotonic_ns()}"
            model = self.build(load_file(source))
            with silence():
                self.package.compress_model(
                    model, pattern_dict=chosen, save_path=str(official), save_single_file=single, check_correctness=False
                )
            names = {path.name for path in ours.iterdir()} - {"df11_shapes.json", "df11_source.json"}
            if names != {path.name for path in official.iterdir()}:
                raise SystemExit(f"{source}: other files: {sorted(names)[:5]} ...")
            for name in sorted(names):
                if (ours / name).read_bytes() != (official / name).read_bytes():
                    raise SystemExit(f"{source}: `{name}` differs")
            self.check_decoded(official, source)
            self.check_loading(ours, load_file(source))
            print(f"{source.name}: {len(names)} files equal, {'single file' if single else 'per module'}", flush=True)

    def check_decoded(self, directory, source):
        """What the package wrote comes back as it was."""
        from safetensors.torch import load_file

        decoded = self.convert(directory, "--to", "safetensors", "--shapes-from", str(source))
        back = load_file(decoded / "model.safetensors")
        plain = load_file(source)
        if back.keys() != plain.keys():
            raise SystemExit(f"{source}: other tensors came back")
        for name, tensor in plain.items():
            same = tensor.shape == back[name].shape and tensor.dtype == back[name].dtype
            as_bytes = [t.contiguous().view(self.torch.uint8) if t.ndim else t for t in (tensor, back[name])]
            if not same or not self.torch.equal(*as_bytes):
                raise SystemExit(f"{source}: `{name}` came back as something else")

    def check_loading(self, directory, tensors):
        """The package's own loader takes our directory: it finds a module for every tensor that we wrote."""
        config = json.loads((directory / "config.json").read_text())["dfloat11_config"]
        model = self.build(tensors)
        messages = io.StringIO()
        with contextlib.redirect_stderr(messages), contextlib.redirect_stdout(io.StringIO()):
            self.package.load_and_replace_tensors(model, str(directory), config)
        if "Cannot find" in messages.getvalue() or "mismatch" in messages.getvalue():
            raise SystemExit(f"{directory}: the package does not load it: {messages.getvalue()[-300:]}")
        coded = [name for name, module in model.named_modules() if hasattr(module, "shared_mem_size")]
        if not coded:
            raise SystemExit(f"{directory}: the package found nothing to decode")

    def random_tensors(self, n_tensors):
        """Weights of many sizes and distributions, the odd ones among them."""
        torch = self.torch
        generator = torch.Generator().manual_seed(11)
        weights = {}
        for idx in range(n_tensors):
            n = int(torch.randint(1, 12_000, (1,), generator=generator)) if idx % 4 else idx + 1
            normal = torch.randn(n, generator=generator)
            scale = torch.exp2(torch.randint(-30, 30, (n,), generator=generator).float())
            weight = [
                normal * 0.02,
                normal * scale,
                torch.rand(n, generator=generator) - 0.5,
                normal * normal * normal * 1e-3,
                torch.where(normal > 1.5, 0.0, normal),
                torch.full((n,), 0.75),
            ][idx % 6 if idx % 29 else 5]
            if idx % 37 == 5:
                weight[n // 2] = [float("inf"), float("nan"), 1e37][idx % 3]
            weights[f"t{idx}"] = weight.to(torch.bfloat16).reshape(1, n)
        # Counts that double, or grow as Fibonacci's: the longest codes that a tensor of this size can have.
        for name, ratio in (("doubling", 2.0), ("fibonacci", 1.618)):
            counts = [max(1, round(ratio**power)) for power in range(int(17 / torch.log2(torch.tensor(ratio))))]
            exponents = torch.cat([torch.full((count,), 100 + i) for i, count in enumerate(counts)])
            order = torch.randperm(len(exponents), generator=generator)
            signs = torch.randint(0, 2, (len(exponents),), generator=generator) << 15
            bits = (exponents[order] << 7) | signs | torch.randint(0, 128, (len(exponents),), generator=generator)
            bits = torch.where(bits >= 1 << 15, bits - (1 << 16), bits).to(torch.int16)
            weights[name] = bits.view(torch.bfloat16).reshape(1, -1)
        return weights

    def real_tensors(self, source, n_tensors, max_elements):
        from safetensors import safe_open

        with safe_open(source, framework="pt") as file:
            keys = list(file.keys())
            names = [name for name in keys if len(file.get_slice(name).get_shape()) == 2]
            weights = {}
            for name in names:
                weight = file.get_tensor(name)
                if weight.dtype == self.torch.bfloat16 and weight.numel() <= max_elements and len(weights) < n_tensors:
                    weights[name.removesuffix(".weight")] = weight
        return weights

    def model_of_pieces(self, source, n_pieces):
        """A model whose layers are pieces of the BF16 matrices of a file, for files that are no model themselves."""
        from safetensors.torch import save_file

        matrices = list(self.real_tensors(source, 1000, 1 << 30).values())
        n_rows = sum(matrix.shape[0] for matrix in matrices) // n_pieces
        pieces = [piece.clone() for matrix in matrices for piece in matrix.split(n_rows)]
        path = self.scratch / "model-of-pieces.safetensors"
        save_file({f"model.layers.{idx}.mlp.weight": piece for idx, piece in enumerate(pieces)}, path)
        return path

    def random_model(self):
        """A small language model of random weights."""
        from safetensors.torch import save_file

        torch = self.torch
        generator = torch.Generator().manual_seed(7)
        shapes = {"model.embed_tokens.weight": (600, 64), "model.norm.weight": (64,), "lm_head.weight": (600, 64)}
        for layer in range(3):
            prefix = f"model.layers.{layer}"
            for name in "qkvo":
                shapes[f"{prefix}.self_attn.{name}_proj.weight"] = (64, 64)
            shapes[f"{prefix}.self_attn.q_proj.bias"] = (64,)
            shapes[f"{prefix}.mlp.up_proj.weight"] = (160, 64)
            shapes[f"{prefix}.mlp.down_proj.weight"] = (64, 160)
            shapes[f"{prefix}.input_layernorm.weight"] = (64,)
        path = self.scratch / "random-model.safetensors"
        tensors = {n: (torch.randn(s, generator=generator) * 0.05).to(torch.bfloat16) for n, s in shapes.items()}
        save_file(tensors, path)
        return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mithril", required=True, help="the program")
    parser.add_argument("--venv", help="environment to run in; made if it is not there")
    parser.add_argument("--tensors", type=int, default=280, help="random tensors")
    parser.add_argument("--pieces-of", type=Path, help="a file whose BF16 matrices are cut into the layers of a model")
    parser.add_argument("--only-tensors", action="store_true", help="no whole models of the named files")
    parser.add_argument("models", nargs="*", type=Path, help="safetensors files of BF16 weights")
    arguments = parser.parse_args()
    if arguments.venv:
        enter_venv(arguments.venv)
    with tempfile.TemporaryDirectory() as scratch:
        oracle = Oracle(arguments.mithril, scratch)
        oracle.compare_tensors(oracle.random_tensors(arguments.tensors), "random tensors")
        random_model = oracle.random_model()
        oracle.compare_model(random_model)
        attention = [f"self_attn.{name}_proj" for name in "qkvo"]
        oracle.compare_model(random_model, {r"model\.layers\.\d+": [*attention, "mlp.up_proj", "mlp.down_proj"]})
        if arguments.pieces_of:
            pieces = oracle.model_of_pieces(arguments.pieces_of, 24)
            oracle.compare_tensors(oracle.real_tensors(pieces, 24, 600_000), f"pieces of {arguments.pieces_of.name}")
            oracle.compare_model(pieces)
        for model in arguments.models:
            real = oracle.real_tensors(model, 20, 600_000)
            if real:
                oracle.compare_tensors(real, f"tensors of {model.name}")
        for model in [] if arguments.only_tensors else arguments.models:
            oracle.compare_model(model)
        rate = oracle.official_elements / oracle.official_seconds
        print(f"the package's encoder: {rate / 1e6:.3f} million weights/s, {2 * rate / 1e9:.5f} GB/s of CPU time")
        print(f"{oracle.n_compared} tensors equal, {oracle.n_kept} kept by both, every model equal")


if __name__ == "__main__":
    main()
