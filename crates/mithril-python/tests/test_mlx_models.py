"""Entropy-coded models in mlx-lm: the weights and logits of the packed ones."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import mlx_lm.utils
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

import mithril.mlx
from mithril._mithril import run_cli

CONFIG = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 512,
    "head_dim": 32,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
TOKENS = mx.array([[1, 5, 300, 511, 2]])


def packed_model(path: Path, group_size: int, bits: int, mode: str) -> None:
    mx.random.seed(bits)
    model = llama.Model(llama.ModelArgs.from_dict(CONFIG))
    nn.quantize(model, group_size=group_size, bits=bits, mode=mode)
    path.mkdir()
    mx.save_safetensors(str(path / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"})
    quantization = {"group_size": group_size, "bits": bits, "mode": mode}
    (path / "config.json").write_text(json.dumps({**CONFIG, "quantization": quantization}))


def bits_of(array: mx.array) -> bytes:
    return np.array(array.astype(mx.float32)).tobytes()


@pytest.fixture(params=[(64, 4, "affine"), (32, 4, "mxfp4")], ids=["affine", "mxfp4"])
def models(request, tmp_path):
    packed, coded = tmp_path / "packed", tmp_path / "coded"
    packed_model(packed, *request.param)
    assert run_cli(["mithril", "convert", str(packed), "--to", "ecq", "-o", str(coded)]) == 0
    return packed, coded


def test_weights_and_logits_are_those_of_the_packed_model(models):
    packed, coded = models
    wanted = mx.load(str(packed / "model.safetensors"))
    weights = mithril.mlx.load_weights(coded)
    assert weights.keys() == wanted.keys()
    for name, array in wanted.items():
        assert weights[name].dtype == array.dtype and bits_of(weights[name]) == bits_of(array), name
    logits = bits_of(mlx_lm.utils.load_model(packed)[0](TOKENS))
    for keep_coded in (False, True):
        model, _ = mithril.mlx.load_model(coded, keep_coded=keep_coded)
        assert bits_of(model(TOKENS)) == logits, keep_coded
    layer = model.model.layers[0].self_attn.q_proj
    assert isinstance(layer, mithril.mlx.EntropyCodedLinear)
    assert "weight" not in layer.parameters(), "its weights are not in memory"


def test_mlx_lm_refuses_coded_models_unless_enabled(models):
    packed, coded = models
    with pytest.raises(KeyError, match="weight"):
        mlx_lm.utils.load_model(coded)
    mithril.mlx.enable()
    try:
        model, _ = mlx_lm.utils.load_model(coded)
        plain, _ = mlx_lm.utils.load_model(packed)
        assert bits_of(model(TOKENS)) == bits_of(plain(TOKENS))
    finally:
        mithril.mlx.disable()


def test_converted_models_generate_what_packed_ones_do(tmp_path):
    plain, packed, coded = tmp_path / "plain", tmp_path / "packed", tmp_path / "coded"
    plain.mkdir()
    mx.random.seed(7)
    model = llama.Model(llama.ModelArgs.from_dict(CONFIG))
    mx.save_safetensors(str(plain / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"})
    (plain / "config.json").write_text(json.dumps(CONFIG))
    words = Tokenizer(WordLevel({f"w{number}": number for number in range(512)}, unk_token="w0"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w511", unk_token="w0").save_pretrained(plain)
    quantised = {"quantize": True, "q_bits": 4, "q_group_size": 64}
    mlx_lm.convert(str(plain), str(packed), **quantised)
    mithril.mlx.convert(str(plain), coded, **quantised)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("coded")] == ["coded"]

    def text(loaded):
        return mlx_lm.generate(*loaded, prompt="w1 w17 w300", max_tokens=6)

    wanted = text(mlx_lm.load(str(packed)))
    assert text(mithril.mlx.load(coded)) == wanted
    mithril.mlx.enable()
    try:
        assert text(mlx_lm.load(str(coded))) == wanted
    finally:
        mithril.mlx.disable()


def test_other_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no model"):
        mithril.mlx.load_weights(tmp_path)
    mx.save_safetensors(str(tmp_path / "model.safetensors"), {"a": mx.zeros((2, 2))}, {"format": "mlx"})
    with pytest.raises(ValueError, match="not entropy-coded"):
        mithril.mlx.load_weights(tmp_path)
