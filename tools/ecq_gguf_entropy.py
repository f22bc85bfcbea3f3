"""What is left in GGUF's Q4_1 and Q8_0 blocks: entropies of codes, scales and minima, in bits for each weight.

    VENV/bin/python tools/ecq_gguf_entropy.py MODEL.safetensors ...

Quantises all matrices whose rows are whole K blocks by the pip package `gguf`, which makes these two types as ggml does.
Scales and minima have their upper 11 bits counted by entropy and 5 raw ones below; a minimum is counted as its distance from
-7.5 scales. Needs `gguf`, `numpy` and `safetensors`.
"""

import sys

import numpy as np
from gguf import GGMLQuantizationType, quants
from safetensors.numpy import load_file

RAW_BITS = 5


def entropy(*columns):
    """Bits of a row of these columns of whole numbers."""
    key = np.zeros(columns[0].size, np.int64)
    for column in columns:
        column = column.ravel().astype(np.int64)
        key = key * (column.max() - column.min() + 1) + column - column.min()
    counts = np.unique(key, return_counts=True)[1]
    return float(-(counts / key.size * np.log2(counts / key.size)).sum())


def halves(blocks, at):
    """A half of every block, as bits."""
    return blocks[:, at : at + 2].copy().view(np.uint16).ravel()


def q4_1(weight):
    """Codes, codes with their zero code known, scales, minima."""
    blocks = quants.quantize(weight, GGMLQuantizationType.Q4_1).reshape(-1, 20)
    codes = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], 1)
    scales, minima = halves(blocks, 0), halves(blocks, 2)
    scale, minimum = (half.view(np.float16).astype(np.float32) for half in (scales, minima))
    # In half codes: where zero lies between minimum and maximum.
    zeros = np.clip(np.round(-2 * minimum / np.maximum(scale, 1e-30)), 0, 30).astype(np.int64)
    known = entropy(codes, np.repeat(zeros, 32)) - entropy(zeros)
    expected = (-7.5 * scale).astype(np.float16).view(np.uint16).astype(np.int64)
    rest = minima.astype(np.int64) - expected
    sides = [(entropy(side >> RAW_BITS) + RAW_BITS) / 32 for side in (scales, rest)]
    return np.array([entropy(codes), known, *sides])


def q8_0(weight):
    """Codes, upper halves of codes with raw lower ones, scales."""
    blocks = quants.quantize(weight, GGMLQuantizationType.Q8_0).reshape(-1, 34)
    codes = blocks[:, 2:].view(np.int8)
    scales = (entropy(halves(blocks, 0) >> RAW_BITS) + RAW_BITS) / 32
    return np.array([entropy(codes), entropy(codes >> 4) + 4, scales])


def main():
    """Prints two lines for every file."""
    for path in sys.argv[1:]:
        weights = [tensor.astype(np.float32) for tensor in load_file(path).values() if is_taken(tensor)]
        total = sum(weight.size for weight in weights)
        codes, known, scales, minima = sum(weight.size * q4_1(weight) for weight in weights) / total
        rest = scales + minima
        print(
            f"{path}: Q4_1 codes {codes:.3f}, zero code known {known:.3f}, scales {scales:.3f}, minima {minima:.3f}; "
            f"of packed {(codes + rest) / 5:.4f}, zero code known {(known + rest) / 5:.4f}"
        )
        whole, split, scales = sum(weight.size * q8_0(weight) for weight in weights) / total
        print(
            f"{path}: Q8_0 codes {whole:.3f}, halved {split:.3f}, scales {scales:.3f}; "
            f"of packed {(whole + scales) / 8.5:.4f}, halved {(split + scales) / 8.5:.4f}",
            flush=True,
        )


def is_taken(tensor):
    """Whether it is a matrix of floats whose rows are whole K blocks."""
    return tensor.ndim == 2 and tensor.shape[1] % 256 == 0 and tensor.size > 4096 and tensor.dtype.kind == "f"


if __name__ == "__main__":
    main()
