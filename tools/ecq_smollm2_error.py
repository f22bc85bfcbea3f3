"""What quantising does to the predictions of SmolLM2: the divergence of its next tokens from those of the plain weights.

    PYTHONPATH=... VENV/bin/python tools/ecq_smollm2_error.py MODEL.gguf --floats DIR
    PYTHONPATH=... VENV/bin/python tools/ecq_smollm2_error.py MODEL.gguf QUANTISED.safetensors ...

MODEL is a Llama model in a GGUF file, as for `ecq_smollm2.py`. With `--floats` its weights are written as singles, for
`mithril quantize DIR`. The other files hold what came of that: what `mithril convert ECQ --to safetensors` writes. Prints
for each the mean Kullback-Leibler divergence, in nats, over the tokens of four texts that the plain model writes itself.
Needs what `ecq_smollm2.py` needs.
"""

import argparse
from pathlib import Path

import torch
from ecq_smollm2 import Gguf, Llama, decoded, generate
from safetensors.torch import load_file, save_file

PROMPTS = [
    ["The", "\u0120capital", "\u0120of", "\u0120France", "\u0120is"], ["Water", "\u0120is", "\u0120made", "\u0120of"],
    ["Once", "\u0120upon", "\u0120a", "\u0120time"], ["The", "\u0120train", "\u0120leaves", "\u0120at"],
]  # fmt: skip
LAYERS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


@torch.no_grad()
def predictions(model: Llama, numbers: list[int]) -> torch.Tensor:
    """Logarithms of the probabilities of every next token."""
    x = model.token_embd(torch.tensor(numbers))
    for layer in model.blk:
        x = layer(x, [], model.sizes, model.base)
    return model.output(model.output_norm(x)).log_softmax(-1)


def with_weights(file: Gguf, weights: dict[str, torch.Tensor]) -> Llama:
    """The model with other weights."""
    model = Llama(file, "plain")
    model.token_embd.weight.data = weights["token_embd.weight"]
    for at, layer in enumerate(model.blk):
        for name in LAYERS:
            getattr(layer, name).weight.data = weights[f"blk.{at}.{name}.weight"]
    if "output.weight" in weights:
        model.output.weight.data = weights["output.weight"]
    return model


def main() -> None:
    """Prints a line for every file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("quantised", type=Path, nargs="*")
    parser.add_argument("--floats", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    file = Gguf(arguments.model)
    if arguments.floats:
        arguments.floats.mkdir()
        singles = {name: decoded(*tensor).clone() for name, tensor in file.tensors.items()}
        save_file(singles, arguments.floats / "model.safetensors")
    plain = Llama(file, "plain")
    vocabulary = file.values["tokenizer.ggml.tokens"]
    prompts = [[vocabulary.index(word) for word in words] for words in PROMPTS]
    texts = [generate(plain, prompt, 20)[0] for prompt in prompts]
    wanted = [predictions(plain, text) for text in texts]
    for path in arguments.quantised:
        model = with_weights(file, load_file(path))
        pairs = [(want, predictions(model, text)) for want, text in zip(wanted, texts, strict=True)]
        divergence = sum(float((want.exp() * (want - found)).sum(-1).mean()) for want, found in pairs) / len(pairs)
        print(f"{path}: divergence {divergence:.4f}", flush=True)


if __name__ == "__main__":
    main()
