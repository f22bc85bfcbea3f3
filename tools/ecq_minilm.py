"""Sentence embeddings of MiniLM with quantised weights, beside those of the plain weights.

    VENV/bin/python tools/ecq_minilm.py MODEL.safetensors TOKENIZER.json OTHER.safetensors ...
    VENV/bin/python tools/ecq_minilm.py MODEL.safetensors TOKENIZER.json --sensitivities OUT.json

The files hold plain weights: what `mithril convert ECQ --to safetensors` writes, for instance. MLX's affine 4-bit
formats are made here, by MLX itself. Needs `mlx[cpu]`, `numpy`, `safetensors` and `tokenizers`. Prints the mean and the
least cosine to the embeddings of MODEL over 24 sentences.

With `--sensitivities` it measures what `mithril quantize --sensitivities` takes: how far the embeddings of eight other
sentences turn when one matrix after the other is rounded with a step of 0.6 deviations, for its relative error and for
each of its weights.
"""

import json
import sys

import mlx.core as mx
import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

SENTENCES = [
    "The cat sat on the mat.", "A quick brown fox jumps over the lazy dog.", "Compression saves memory and time.",
    "Quantum computers are still noisy.", "She sells sea shells by the sea shore.", "The stock market fell sharply today.",
    "How do I bake sourdough bread?", "Python is a popular programming language.", "The train to Berlin leaves at nine.",
    "Neural networks have millions of weights.", "He forgot his umbrella on the bus.", "The patient was given antibiotics.",
    "What is the capital of Australia?", "Heavy rain caused flooding in the valley.", "The court dismissed the appeal.",
    "I would like a table for two, please.", "Photosynthesis turns light into sugar.", "The goalkeeper saved the penalty.",
    "Our server crashed twice last night.", "Mozart wrote this sonata in 1778.", "The recipe needs two cups of flour.",
    "Satellites measure the height of the oceans.", "Please reset my password.", "The old bridge was closed for repairs.",
]  # fmt: skip

# None of them is among those that are compared.
CALIBRATION = [
    "A dog barked at the mail carrier.", "Interest rates will rise next quarter.", "Mix the eggs with the sugar first.",
    "The museum opens at ten in the morning.", "Gravity bends the path of light.", "My flight to Tokyo was cancelled.",
    "The committee published its report.", "Which font is easiest to read?",
]  # fmt: skip


def norm(x, weights, name):
    """Layer normalisation."""
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12)
    return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def gelu(x):
    """The exact Gaussian error unit."""
    return x * np.array(mx.erf(mx.array(x / np.sqrt(2))) + 1) / 2


def embed(weights, tokens):
    """The normalised mean of the last layer."""

    def linear(x, name):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    x = weights["embeddings.word_embeddings.weight"][tokens]
    x = x + weights["embeddings.position_embeddings.weight"][: len(tokens)]
    x = norm(x + weights["embeddings.token_type_embeddings.weight"][0], weights, "embeddings.LayerNorm")
    for layer in range(6):
        at = f"encoder.layer.{layer}"
        q, k, v = (
            linear(x, f"{at}.attention.self.{part}").reshape(-1, 12, 32).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(32)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (scores / scores.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(-1, 384)
        out = linear(mixed, f"{at}.attention.output.dense")
        x = norm(x + out, weights, f"{at}.attention.output.LayerNorm")
        out = linear(gelu(linear(x, f"{at}.intermediate.dense")), f"{at}.output.dense")
        x = norm(x + out, weights, f"{at}.output.LayerNorm")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


def affine(weights, bits, group):
    """Every matrix through MLX's affine quantisation."""
    out = {}
    for name, weight in weights.items():
        if weight.ndim == 2 and weight.shape[1] % 128 == 0 and weight.size > 10000 and weight.dtype == np.float32:
            parts = mx.quantize(mx.array(weight).astype(mx.bfloat16), group_size=group, bits=bits)
            weight = np.array(mx.dequantize(*parts, group_size=group, bits=bits).astype(mx.float32))
        out[name] = weight
    return out


def sensitivities(plain, tokens):
    """What the relative error of each matrix does to the embeddings, for each of its weights; one on average."""
    wanted = [embed(plain, ids) for ids in tokens]
    found, sizes = {}, {}
    for name, weight in plain.items():
        if weight.ndim != 2 or weight.size < 4096:
            continue
        energy = np.square(weight, dtype=np.float64).sum()
        step = 0.6 * np.sqrt(energy / weight.size)
        rounded = (np.rint(weight / step) * step).astype(np.float32)
        error = np.square(rounded - weight, dtype=np.float64).sum() / energy
        turned = np.mean([1 - embed(plain | {name: rounded}, ids) @ want for ids, want in zip(tokens, wanted, strict=True)])
        found[name], sizes[name] = max(turned, 1e-9) / error / weight.size, weight.size
    mean = np.exp(sum(sizes[name] * np.log(value) for name, value in found.items()) / sum(sizes.values()))
    # What these sentences do not need, others may: nothing counts for less than a tenth.
    return {name: float(max(value / mean, 0.1)) for name, value in found.items()}


def main():
    """Prints a line for every model."""
    plain = load_file(sys.argv[1])
    tokenizer = Tokenizer.from_file(sys.argv[2])
    tokenizer.no_padding()
    if sys.argv[3:4] == ["--sensitivities"]:
        found = sensitivities(plain, [tokenizer.encode(sentence).ids for sentence in CALIBRATION])
        with open(sys.argv[4], "w") as file:
            json.dump(found, file, indent=1)
        return
    tokens = [tokenizer.encode(sentence).ids for sentence in SENTENCES]
    wanted = [embed(plain, ids) for ids in tokens]
    models = [("affine4-g64 by MLX", affine(plain, 4, 64)), ("affine3-g64 by MLX", affine(plain, 3, 64))]
    models += [(path, load_file(path)) for path in sys.argv[3:]]
    for name, weights in models:
        cosines = [float(embed(weights, ids) @ want) for ids, want in zip(tokens, wanted, strict=True)]
        print(f"{name}: cosine mean {np.mean(cosines):.4f}, least {np.min(cosines):.4f}", flush=True)


if __name__ == "__main__":
    main()
