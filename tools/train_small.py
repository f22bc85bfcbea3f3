"""Trains a small real transformer on the CPU and writes its training state as safetensors files.

    python tools/train_small.py OUT [--save 100,101,110,200,201,210] [--phases 110:1e-3,90:1e-5,...]
    python tools/train_small.py OUT --resume OUT/step_0210.safetensors --train-blocks 1 --save 10,20

About 10.6 M parameters, words of the Python sources on this machine, AdamW. Every file `step_XXXX.safetensors` holds
`model.*` (bf16, what the forward pass uses), `master.*`, `exp_avg.*` and `exp_avg_sq.*` (fp32). The bf16 weights are
the masters rounded to nearest even. With `--train-blocks N` only the last N blocks are trained, the rest is frozen.
Needs torch (scripts/install_torch.py) and safetensors. The same arguments on the same machine give the same files.
"""

import argparse
import collections
import math
import re
import sysconfig
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

WIDTH, HEADS, BLOCKS, VOCABULARY, CONTEXT = 256, 4, 8, 8192, 128
BETAS, EPSILON, WEIGHT_DECAY = (0.9, 0.95), 1e-8, 0.1


def read_tokens() -> torch.Tensor:
    """The sources of the standard library as numbers of words, the most frequent first."""
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in sources)
    words = re.findall(r"[A-Za-z_]+|\d|\s+|[^\w\s]", text)
    frequent = [word for word, _ in collections.Counter(words).most_common(VOCABULARY - 1)]
    numbers = {word: at for at, word in enumerate(frequent, start=1)}
    return torch.tensor([numbers.get(word, 0) for word in words])


def initial_weights() -> dict[str, torch.Tensor]:
    def normal(*shape: int, deviation: float = 0.02) -> torch.Tensor:
        return torch.randn(*shape) * deviation

    weights = {"embedding.weight": normal(VOCABULARY, WIDTH), "position.weight": normal(CONTEXT, WIDTH)}
    for block in range(BLOCKS):
        for name, shape in [
            ("attention.qkv", (3 * WIDTH, WIDTH)),
            ("attention.out", (WIDTH, WIDTH)),
            ("mlp.up", (4 * WIDTH, WIDTH)),
            ("mlp.down", (WIDTH, 4 * WIDTH)),
        ]:
            deviation = 0.02 / math.sqrt(2 * BLOCKS) if name in ("attention.out", "mlp.down") else 0.02
            weights[f"blocks.{block}.{name}.weight"] = normal(*shape, deviation=deviation)
            weights[f"blocks.{block}.{name}.bias"] = torch.zeros(shape[0])
        for name in ("norm_1", "norm_2"):
            weights[f"blocks.{block}.{name}.weight"] = torch.ones(WIDTH)
    weights["norm.weight"] = torch.ones(WIDTH)
    weights["head.weight"] = normal(VOCABULARY, WIDTH)
    return weights


def loss_of(w: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    x = w["embedding.weight"][inputs] + w["position.weight"][: inputs.shape[1]]
    for block in range(BLOCKS):
        at = f"blocks.{block}."

        def linear(name: str, x: torch.Tensor, at: str = at) -> torch.Tensor:
            return functional.linear(x, w[f"{at}{name}.weight"], w[f"{at}{name}.bias"])

        y = functional.rms_norm(x, (WIDTH,), w[at + "norm_1.weight"])
        heads = linear("attention.qkv", y).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        x = x + linear("attention.out", y)
        y = functional.rms_norm(x, (WIDTH,), w[at + "norm_2.weight"])
        x = x + linear("mlp.down", functional.gelu(linear("mlp.up", y)))
    logits = functional.rms_norm(x, (WIDTH,), w["norm.weight"]) @ w["head.weight"].T
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def learning_rate(step: int, phases: list[tuple[int, float]], warm_up: int) -> float:
    """The rate of the phase that this step lies in; the first steps rise to it."""
    end = 0
    for n_steps, rate in phases:
        end += n_steps
        if step <= end:
            break
    return rate * min(1.0, step / max(warm_up, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--save", default="100,101,110,200,201,210", help="steps after which the state is written")
    parser.add_argument("--phases", default="110:1e-3,100:1e-5", help="STEPS:LEARNING_RATE, one after the other")
    parser.add_argument("--batch", type=int, default=3, help="sequences of 128 tokens per step")
    parser.add_argument("--resume", type=Path, help="state to go on from; its steps are not counted")
    parser.add_argument("--train-blocks", type=int, default=BLOCKS, help="blocks that are trained, from the last")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--torch", action="store_true", help="also write each state by torch.save, for its size")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    arguments.out.mkdir(parents=True, exist_ok=True)
    save = sorted(int(step) for step in arguments.save.split(","))
    phases = [(int(n), float(rate)) for n, rate in (phase.split(":") for phase in arguments.phases.split(","))]
    tokens = read_tokens()

    master = initial_weights()
    state = load_file(arguments.resume) if arguments.resume else {}
    roles = {}
    for role in ("master", "exp_avg", "exp_avg_sq"):
        fresh = {name: weight.clone() if role == "master" else torch.zeros_like(weight) for name, weight in master.items()}
        roles[role] = {name: state.get(f"{role}.{name}", value) for name, value in fresh.items()}
    first = BLOCKS - arguments.train_blocks
    frozen = [f"blocks.{block}." for block in range(first)]
    frozen += ["embedding.", "position.", "head."] if first else []
    trained = [name for name in master if not name.startswith(tuple(frozen))]

    for step in range(1, save[-1] + 1):
        model = {name: weight.bfloat16().float() for name, weight in roles["master"].items()}
        for name in trained:
            model[name].requires_grad_()
        starts = torch.randint(len(tokens) - CONTEXT - 1, (arguments.batch,))
        loss = loss_of(model, torch.stack([tokens[at : at + CONTEXT + 1] for at in starts]))
        loss.backward()
        rate = learning_rate(step, phases, 0 if arguments.resume else 20)
        correction = [1 - beta**step for beta in BETAS] if not arguments.resume else [1.0, 1.0]
        for name in trained:
            gradient = model[name].grad
            weight, m, v = (roles[role][name] for role in ("master", "exp_avg", "exp_avg_sq"))
            m.lerp_(gradient, 1 - BETAS[0])
            v.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
            weight.mul_(1 - rate * (WEIGHT_DECAY if weight.dim() > 1 else 0))
            weight.addcdiv_(m / correction[0], (v / correction[1]).sqrt_().add_(EPSILON), value=-rate)
        if step % 20 == 0 or step in save:
            print(f"step {step}: rate {rate:.1e}, loss {loss.item():.3f}", flush=True)
        if step in save:
            tensors = {f"model.{name}": weight.bfloat16() for name, weight in roles["master"].items()}
            tensors |= {f"{role}.{name}": tensor for role, named in roles.items() for name, tensor in named.items()}
            path = arguments.out / f"step_{step:04}.safetensors"
            save_file(tensors, path)
            if arguments.torch:
                torch.save(tensors, path.with_suffix(".pt"))


if __name__ == "__main__":
    main()
