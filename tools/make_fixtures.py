"""Writes the small foreign files that the tests of mithril-format read, and what the libraries themselves find in them.

    python tools/make_fixtures.py

Needs numpy, torch, safetensors and gguf. The files stand in crates/mithril-format/tests/fixtures; expected.json lists
for each file the tensors by name with dtype, shape and bytes in hexadecimal. The numbers come from a fixed generator,
the files of torch hold a random identifier: run it to add a file, not to see that nothing changed.
"""

import collections
import json
import pathlib
import zipfile

import gguf
import numpy as np
import safetensors.numpy
import torch

FOLDER = pathlib.Path(__file__).parent.parent / "crates/mithril-format/tests/fixtures"
DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "qint8": "I8",
}  # fmt: skip


def tensor(name: str, dtype: str, shape: list[int], data: bytes) -> dict:
    return {"name": name, "dtype": dtype, "shape": list(shape), "bytes": data.hex()}


def of_array(name: str, array: np.ndarray) -> dict:
    return tensor(name, DTYPES[array.dtype.name], array.shape, array.tobytes())


def of_torch(name: str, value: torch.Tensor) -> dict:
    data = bytes(value.contiguous().flatten().view(torch.uint8).tolist()) if value.numel() else b""
    return tensor(name, DTYPES[str(value.dtype).removeprefix("torch.")], value.shape, data)


def arrays(random: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "weight": random.standard_normal((4, 5), dtype=np.float32),
        "half": random.standard_normal(7).astype(np.float16),
        "ids": np.arange(6, dtype=np.int64).reshape(1, 2, 3),
        "mask": np.array([True, False, True]),
        "complex": np.array([1 + 2j, 3 - 4j], dtype=np.complex64),
        "scalar": np.array(2.5),
        "empty": np.zeros((0, 3), dtype=np.uint16),
    }


def npy_files(random: np.random.Generator) -> dict:
    weight = random.standard_normal((3, 4))
    np.save(FOLDER / "weight.npy", weight)
    np.save(FOLDER / "fortran.npy", np.asfortranarray(weight))
    np.save(FOLDER / "big_endian.npy", weight.astype(">f8"))
    np.save(FOLDER / "records.npy", np.zeros(2, dtype=[("shape", "<f4"), ("b", "<i2", (2,))]))
    np.savez(FOLDER / "arrays.npz", **arrays(random))
    np.savez_compressed(FOLDER / "compressed.npz", **arrays(random))
    write_zip64(FOLDER / "zip64.npz", ["weight.npy", "fortran.npy"])
    return {
        "zip64.npz": [of_array("weight", weight), of_array("fortran", np.ascontiguousarray(weight.T))],
        "weight.npy": [of_array("", weight)],
        "fortran.npy": [of_array("", np.ascontiguousarray(weight.T))],
        "big_endian.npy": [tensor("", "BYTES", [96], weight.astype(">f8").tobytes())],
        "records.npy": [tensor("", "BYTES", [16], bytes(16))],
        "arrays.npz": [of_array(name, np.load(FOLDER / "arrays.npz")[name]) for name in arrays(random)],
        "compressed.npz": [],
    }


def write_zip64(path: pathlib.Path, names: list[str]) -> None:
    """An archive with the records that files above 4 GiB have."""
    limits = zipfile.ZIP64_LIMIT, zipfile.ZIP_FILECOUNT_LIMIT
    zipfile.ZIP64_LIMIT, zipfile.ZIP_FILECOUNT_LIMIT = 8, 0
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name), (FOLDER / name).read_bytes())
    zipfile.ZIP64_LIMIT, zipfile.ZIP_FILECOUNT_LIMIT = limits


def torch_files() -> dict:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3, "args": {"lr": 0.1}}
    torch.save(checkpoint, FOLDER / "checkpoint.pt")
    plain = [of_torch(f"model.{name}", value) for name, value in model.state_dict().items()]
    for number, state in optimizer.state_dict()["state"].items():
        plain += [of_torch(f"optimizer.state.{number}.{name}", value) for name, value in state.items()]

    base = torch.arange(6.0).reshape(2, 3)
    attribute = torch.ones(3)
    attribute.note = "kept"
    odd = {
        "base": base,
        "row": base[1],
        "turned": base.t(),
        "part": torch.arange(10, dtype=torch.int16)[2:5],
        "parameter": torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16)),
        "float8": torch.arange(4.0).to(torch.float8_e4m3fn),
        "uint16": torch.arange(3, dtype=torch.int32).to(torch.uint16),
        "complex": torch.tensor([1 + 2j], dtype=torch.complex64),
        "nested": [(torch.tensor([True, False]),), collections.OrderedDict(x=torch.tensor(7))],
        "attribute": attribute,
        "empty": torch.empty(0, 3),
        "sparse": torch.eye(2).to_sparse(),
        "meta": torch.empty(3, device="meta"),
        "plain": [None, True, 1.5, 10**30, b"bytes", {1, 2}, 1 + 2j, base.size(), torch.float16, torch.device("cpu")],
    }
    torch.save(odd, FOLDER / "odd.pt")
    # In place of a tensor that shares its storage or is not contiguous stands the storage.
    part = torch.arange(10, dtype=torch.int16)
    expected = [
        of_torch("base", base),
        tensor("data/1", "I16", [10], part.numpy().tobytes()),
        of_torch("parameter", odd["parameter"].detach()),
        of_torch("float8", odd["float8"]),
        of_torch("uint16", odd["uint16"]),
        of_torch("complex", odd["complex"]),
        of_torch("nested.0.0", odd["nested"][0][0]),
        of_torch("nested.1.x", odd["nested"][1]["x"]),
        of_torch("attribute", attribute),
        of_torch("empty", odd["empty"]),
        of_torch("sparse.1.0", odd["sparse"].coalesce().indices()),
        of_torch("sparse.1.1", odd["sparse"].coalesce().values()),
    ]
    torch.save(odd["base"], FOLDER / "protocol_4.pt", pickle_protocol=4)
    torch.save(odd["base"], FOLDER / "legacy.pt", _use_new_zipfile_serialization=False)
    return {"checkpoint.pt": plain, "odd.pt": expected, "protocol_4.pt": [of_torch("", base)]}


def gguf_file(random: np.random.Generator) -> dict:
    writer = gguf.GGUFWriter(FOLDER / "tiny.gguf", "llama")
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_token_list(["<s>", "a", "b"])
    writer.add_token_scores([0.0, -1.0, -2.0])
    expected = []
    weight = random.standard_normal((2, 256), dtype=np.float32)
    writer.add_tensor("norm.weight", weight[0])
    expected.append(of_array("norm.weight", weight[0]))
    for kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0"):
        kind_number = gguf.GGMLQuantizationType[kind]
        data = gguf.quants.quantize(weight, kind_number)
        writer.add_tensor(f"{kind.lower()}.weight", data, raw_dtype=kind_number)
        expected.append(tensor(f"{kind.lower()}.weight", kind, [2, 256], data.tobytes()))
    for kind in ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "MXFP4"):
        kind_number = gguf.GGMLQuantizationType[kind]
        elements, length = gguf.GGML_QUANT_SIZES[kind_number]
        data = random.integers(0, 256, (2, 256 // elements * length), dtype=np.uint8)
        writer.add_tensor(f"{kind.lower()}.weight", data, raw_dtype=kind_number)
        expected.append(tensor(f"{kind.lower()}.weight", kind, [2, 256], data.tobytes()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {"tiny.gguf": expected}


def safetensors_file(random: np.random.Generator) -> dict:
    tensors = arrays(random)
    safetensors.numpy.save_file(tensors, FOLDER / "arrays.safetensors", metadata={"format": "np"})
    return {"arrays.safetensors": [of_array(name, array) for name, array in tensors.items()]}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(7)
    expected = npy_files(random) | torch_files() | gguf_file(random) | safetensors_file(random)
    lines = (f"{json.dumps(name)}: {json.dumps(tensors)}" for name, tensors in sorted(expected.items()))
    for path in FOLDER.iterdir():
        path.chmod(0o644)
    (FOLDER / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
