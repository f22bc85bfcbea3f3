"""Trains the dictionary that mithril carries for its own metadata.

    python3 tools/metadata_dictionary.py WORK --corpus DIR [--size 24576] -o OUT [--use DICTIONARY]

Samples are headers of safetensors files, headers and indexes of containers, and manifests of stores, of models whose tensors'
names and shapes come from the package `transformers` with its own default configurations, as weights and as training
states. None is of the files of the corpus (`tools/corpus.py`): those are held out, and what their metadata take with the
dictionary and without is printed. With `--use` nothing is trained. Needs mithril, numpy, torch, transformers.

The dictionary of a release never changes: `crates/mithril-codec/src/entropy/metadata.dict`. A better one would be another file
with another id.
"""

import argparse
import json
import pathlib
import struct
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "docs/format"))

import mithril.checkpoint
import mithril.dictionary
import mithril.safetensors.numpy
import reference_container

# A sample is cut off here: what follows resembles it.
MAX_SAMPLE = 6 << 10

CONFIGS = [
    "Bert", "Roberta", "GPT2", "Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "Phi3", "T5", "Bart", "Whisper",
    "ViT", "CLIPVision", "SiglipVision", "Dinov2", "Wav2Vec2", "DistilBert", "Electra", "DebertaV2", "Falcon", "GPTNeoX",
    "OPT", "Mixtral", "ResNet", "ConvNext", "Swin", "Segformer", "Mamba", "Bloom", "XLMRoberta", "MPNet", "Albert",
]


def models():
    """Name, and names, dtypes and shapes of tensors, of models by their default configurations, without weights."""
    import torch
    import transformers

    for name in CONFIGS:
        config = getattr(transformers, f"{name}Config")()
        for attribute in ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_layers", "n_layer"):
            if isinstance(getattr(config, attribute, None), int):
                setattr(config, attribute, min(getattr(config, attribute), 12))
        kinds = [transformers.AutoModel, transformers.AutoModelForCausalLM]
        for kind in kinds:
            try:
                with torch.device("meta"):
                    model = kind.from_config(config)
            except Exception as error:  # noqa: BLE001 - not every configuration has every kind of model
                print(f"{name}: {kind.__name__}: {str(error)[:60]}", file=sys.stderr)
                continue
            yield name, {key: ("F32", tuple(tensor.shape)) for key, tensor in model.state_dict().items()}


def corpus_models(corpus):
    for path in sorted(pathlib.Path(corpus).glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        header.pop("__metadata__", None)
        yield path.stem, {key: (entry["dtype"], tuple(entry["shape"])) for key, entry in header.items()}


def header_of(tensors, dtype, metadata):
    """The header of a safetensors file, as the package writes it: sorted by alignment and name."""
    sizes = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "U8": 1, "I8": 1, "F8_E4M3": 1, "U32": 4, "I32": 4, "BOOL": 1, "F64": 8}
    header = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name in sorted(tensors):
        own, shape = tensors[name]
        kind = dtype if own == "F32" and dtype else own
        size = int(np.prod(shape, dtype=np.int64)) * sizes.get(kind, 4)
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":"))
    return (text + " " * (-len(text) % 8)).encode()


def states(tensors):
    """The same tensors as states of training runs name them."""
    yield tensors
    some = list(tensors.items())[:40]
    yield {f"model.{name}": value for name, value in some} | {
        f"optimizer.state.{i}.{part}": value for i, (_, value) in enumerate(some) for part in ("exp_avg", "exp_avg_sq", "step")
    }
    yield {f"{part}.{name}": value for name, value in some for part in ("base_model.model", "module", "optim.state")}
    yield {f"base_model.model.{name.removesuffix('.weight')}.lora_{part}.weight": value for name, value in some for part in "AB"}


def small(tensors, rng):
    """Arrays of the same names and ranks that take no room."""
    return {name: rng.standard_normal([min(n, 4) for n in shape]).astype(np.float32) for name, (_, shape) in tensors.items()}


def sections(container):
    """Header and index of a container as they are before they are compressed."""
    footer = reference_container.read_footer(container)
    prologue = reference_container.read_prologue(container)
    header = container[reference_container.PROLOGUE_LEN :][: prologue.header_len]
    index = container[footer.index_offset :][: footer.index_len]
    yield reference_container.decode_section(header, prologue.header_raw_len)
    yield reference_container.decode_section(index, footer.index_raw_len)


def manifests(directory, arrays, name):
    """Manifests that a store writes for two steps of a run."""
    compressor = mithril.checkpoint.Compressor(str(directory))
    for step in (100, 200):
        compressor.save({"model": arrays, "step": step, "lr": 1e-4}, f"{name}-{step}", step=step)
    for path in sorted((directory / "manifests").iterdir()):
        data = path.read_bytes()
        if data.startswith(b"MMFT"):
            data = reference_container.decode_section(data[40:], int.from_bytes(data[36:40], "little"))
        yield data


def plain_frames(found):
    return mithril.dictionary.Dictionary(b"", level=19).compress_many(found)


def samples(work, described):
    """Kind and bytes of everything that mithril writes about some models."""
    rng = np.random.default_rng(0)
    dtypes = ["F32", "BF16", "F16", None]
    for number, (name, tensors) in enumerate(described):
        for variant, state in enumerate(states(tensors)):
            metadata = [None, {"format": "pt"}, {"format": "np"}][(number + variant) % 3]
            header = header_of(state, dtypes[(number + variant) % 4], metadata)
            yield "safetensors header", header[:MAX_SAMPLE]
            if len(header) > 3 * MAX_SAMPLE:
                yield "safetensors header", header[len(header) // 2 :][:MAX_SAMPLE]
            few = dict(list(state.items())[:: max(1, len(state) // 40)])
            arrays = small(few, rng)
            for count in (3, len(arrays)):
                some = dict(list(arrays.items())[:count])
                file = mithril.safetensors.numpy.save(some, {"format": "pt"}, effort=["fast", "balanced", "max"][variant % 3])
                for kind, section in zip(("container header", "container index"), sections(file), strict=True):
                    yield kind, section[:MAX_SAMPLE]
        directory = work / f"store-{number}-{name}"
        for manifest in manifests(directory, dict(list(small(tensors, rng).items())[:10]), name.lower()):
            yield "manifest", manifest[:MAX_SAMPLE]


def held_out(work, corpus):
    """Kind and bytes of what mithril writes about the files of the corpus, whole."""
    for path in sorted(pathlib.Path(corpus).glob("*.safetensors")):
        with path.open("rb") as file:
            yield "safetensors header", file.read(struct.unpack("<Q", file.read(8))[0])
    for name, tensors in corpus_models(corpus):
        arrays = small(tensors, np.random.default_rng(1))
        yield from zip(("container header", "container index"), sections(mithril.safetensors.numpy.save(arrays)), strict=True)
        for manifest in manifests(work / f"held-out-{name}", arrays, "step"):
            yield "manifest", manifest


def small_tensors(corpus):
    """Bytes and dtype of tensors of at most 4 KiB, by the family of their file."""
    families = {}
    for path in sorted(pathlib.Path(corpus).glob("*.safetensors")):
        # Fine-tuned models and other precisions of a model are of its family.
        family = "minilm" if "minilm" in path.stem else path.stem.split("-")[0]
        data = path.read_bytes()
        start = 8 + struct.unpack("<Q", data[:8])[0]
        for name, entry in json.loads(data[8:start]).items():
            if name != "__metadata__" and 0 < (len_ := entry["data_offsets"][1] - entry["data_offsets"][0]) <= 4096:
                at = start + entry["data_offsets"][0]
                families.setdefault(family, []).append((data[at : at + len_], entry["dtype"]))
    return families


def measure_small_tensors(corpus):
    """Prints what small tensors take as frames, and with a dictionary made of those of the other families."""
    families = small_tensors(corpus)
    print("| family | small tensors | bytes | frames, max | zstd -19 | with a dictionary of the other families |")
    print("|---|---|---|---|---|---|")
    for family, found in families.items():
        others = [raw for other, tensors in families.items() if other != family for raw, _ in tensors]
        dictionary = mithril.dictionary.train(others, size=24 << 10, level=19, search=False)
        raws = [raw for raw, _ in found]
        frames = [mithril.compress(raw, dtype=dtype.lower(), effort="max") for raw, dtype in found]
        sides = (raws, frames, plain_frames(raws), dictionary.compress_many(raws))
        print(f"| {family} | {len(raws)} | " + " | ".join(str(sum(map(len, side))) for side in sides) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--size", type=int, default=24 << 10)
    parser.add_argument("--use", type=pathlib.Path, help="a dictionary to measure")
    parser.add_argument("--small-tensors", action="store_true", help="measure those too")
    parser.add_argument("-o", "--output", type=pathlib.Path)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.use:
        trained = mithril.dictionary.Dictionary.load(arguments.use, level=19)
    else:
        learn = sorted({sample for _, sample in samples(arguments.work, models())})
        trained = mithril.dictionary.train(learn, size=arguments.size, level=19)
        print(f"{len(learn)} samples, {sum(map(len, learn))} bytes; id {trained.id}, k {trained.training.k}, d {trained.training.d}")
        trained.save(arguments.output)
    print("| kind | number | bytes | zstd -19 | with the dictionary | smaller by |")
    print("|---|---|---|---|---|---|")
    kinds = {}
    for kind, sample in held_out(arguments.work, arguments.corpus):
        kinds.setdefault(kind, []).append(sample)
    for kind, found in kinds.items():
        plain, coded = (sum(map(len, side)) for side in (plain_frames(found), trained.compress_many(found)))
        print(f"| {kind} | {len(found)} | {sum(map(len, found))} | {plain} | {coded} | {(1 - coded / plain) * 100:.1f} % |")
    if arguments.small_tensors:
        measure_small_tensors(arguments.corpus)


if __name__ == "__main__":
    main()
