"""Runs a transformer of 22 million parameters with DFloat11 weights that stay compressed, beside the same model in plain BF16.

    python tools/df11_resident.py CORPUS/minilm-l6-v2.bf16.safetensors

Needs torch, transformers and the installed package; `tools/corpus.py CORPUS --match minilm` builds the file. The model is
all-MiniLM-L6-v2: 6 layers of 384, a table of 30,522 words. Prints whether every output is the same, bit for bit; the bytes
that each model keeps; the growth of the process's memory, each model in a process of its own; and tokens per second by the
wall clock and by CPU time, the best of several rounds, in turns.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIG = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_attention_heads": 12,
    "num_hidden_layers": 6,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}


def load(kind: str, folder: Path, threads: int):
    import torch
    from mithril import df11
    from transformers import BertModel

    torch.set_num_threads(threads)
    if kind == "plain":
        return BertModel.from_pretrained(folder / "plain", dtype=torch.bfloat16).eval()
    return df11.DFloat11Model.from_pretrained(folder / "df11", threads=threads)


def kept_bytes(model) -> int:
    tensors = {id(tensor): tensor.nbytes for tensor in [*model.parameters(), *model.buffers()]}
    return sum(tensors.values()) + (model.df11.buffer_bytes if hasattr(model, "df11") else 0)


def tokens(batch: int, length: int, seed: int = 0):
    import torch

    return torch.randint(1, 30522, (batch, length), generator=torch.Generator().manual_seed(seed))


def resident_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def measure_memory(kind: str, folder: Path, threads: int) -> None:
    """In a process of its own: what loading and running a model adds to it."""
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    # What any model costs: the packages, and the memory of kernels.
    import mithril.df11._resident  # noqa: F401
    import transformers.models.bert.modeling_bert  # noqa: F401

    with torch.no_grad():
        nn.Linear(384, 1536).to(torch.bfloat16)(torch.zeros(128, 384, dtype=torch.bfloat16))
    before = resident_mib()
    model = load(kind, folder, threads)
    loaded = resident_mib() - before
    with torch.no_grad():
        model(tokens(1, 128))
    print(json.dumps([loaded, resident_mib() - before, kept_bytes(model)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", type=Path)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory-of", choices=["plain", "df11"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        return measure_memory(arguments.memory_of, arguments.weights, arguments.threads)

    import torch
    from mithril import df11

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "plain").mkdir()
        (folder / "plain" / "config.json").write_text(json.dumps(CONFIG))
        shutil.copyfile(arguments.weights, folder / "plain" / "model.safetensors")
        start = time.perf_counter()
        summary = df11.compress_model(folder / "plain", save_path=folder / "df11")
        print(f"encoded and compared in {time.perf_counter() - start:.2f} s: {summary.modules} modules, ", end="")
        print(f"{summary.original_size} -> {summary.compressed_size} bytes ({summary.ratio:.4f})")
        models = {kind: load(kind, folder, arguments.threads) for kind in ("plain", "df11")}
        check_outputs(models)
        print_memory(folder, arguments)
        with torch.no_grad():
            print_speed(models, arguments)


def check_outputs(models) -> None:
    import torch

    n_numbers = 0
    for seed, (batch, length) in enumerate([(1, 1), (1, 128), (8, 33), (2, 512), (32, 64)]):
        asked = tokens(batch, length, seed)
        with torch.no_grad():
            found = [model(asked) for model in models.values()]
        for name in ("last_hidden_state", "pooler_output"):
            plain, coded = (getattr(output, name) for output in found)
            n_numbers += plain.numel()
            if not torch.equal(plain.view(torch.int16), coded.view(torch.int16)):
                raise SystemExit(f"error: {name} differs for {batch} x {length} tokens")
    print(f"outputs: {n_numbers} numbers of 5 batches are the same, bit for bit")


def print_memory(folder: Path, arguments) -> None:
    print("model   weights and buffer   process after loading   after a batch of 128 tokens")
    for kind in ("plain", "df11"):
        command = [sys.executable, __file__, str(folder), "--memory-of", kind, "--threads", str(arguments.threads)]
        run = subprocess.run(command, check=True, capture_output=True, text=True)
        loaded, ran, kept = json.loads(run.stdout.splitlines()[-1])
        print(f"{kind:6} {kept:14} bytes {loaded:19.1f} MiB {ran:25.1f} MiB")


def print_speed(models, arguments) -> None:
    print(f"batch x tokens   plain tokens/s   df11 tokens/s   ratio   by CPU time: ratio   ({arguments.threads} threads)")
    for batch, length in [(1, 16), (1, 128), (8, 128), (32, 128)]:
        asked = tokens(batch, length)
        best = {kind: [float("inf"), float("inf")] for kind in models}
        for _ in range(arguments.repeat):
            for kind, model in models.items():
                start, cpu = time.perf_counter(), time.process_time()
                model(asked)
                spent = time.perf_counter() - start, time.process_time() - cpu
                best[kind] = [min(pair) for pair in zip(best[kind], spent, strict=True)]
        rates = {kind: batch * length / seconds for kind, (seconds, _) in best.items()}
        by_cpu = best["plain"][1] / best["df11"][1]
        ratio = rates["df11"] / rates["plain"]
        print(f"{batch:5} x {length:<6} {rates['plain']:14.0f} {rates['df11']:15.0f} {ratio:10.3f} {by_cpu:20.3f}")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
