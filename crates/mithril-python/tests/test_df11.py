"""DFloat11 with real models of torch and transformers: compressed weights give the same bits as plain ones."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

import mithril
from mithril import df11


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(bits(a), bits(b))


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(1)
    config = BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=160, vocab_size=700)
    return BertModel(config).to(torch.bfloat16).eval()


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A model whose output layer shares the weight of its embedding."""
    torch.manual_seed(2)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=600,
        tie_word_embeddings=True,
        architectures=["LlamaForCausalLM"],
    )
    folder = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    # Loaded as users do: what a model computes itself stays in single precision.
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()


def ids(n_rows, high, seed=3):
    return torch.randint(0, high, (n_rows, 19), generator=torch.Generator().manual_seed(seed))


def test_outputs_are_those_of_the_plain_model(bert, tmp_path):
    summary = df11.compress_model(bert, save_path=tmp_path / "df11")
    assert summary.modules == 16 and not summary.kept and 0.6 < summary.ratio < 0.8
    model = df11.DFloat11Model.from_pretrained(tmp_path / "df11")
    for seed in range(3):
        asked = ids(2 + seed, 700, seed)
        with torch.no_grad():
            expected, found = bert(asked), model(asked)
        assert same(expected.last_hidden_state, found.last_hidden_state)
        assert same(expected.pooler_output, found.pooler_output)
    plain = sum(parameter.nbytes for parameter in bert.parameters())
    # The largest matrix that runs whole: its table of words is read by rows.
    assert model.df11.buffer_bytes == 160 * 64 * 2
    assert model.df11.compressed_bytes + model.df11.buffer_bytes < 0.85 * plain


def test_state_is_that_of_the_files(bert, tmp_path):
    df11.compress_model(bert, save_path=tmp_path / "df11")
    model = df11.DFloat11Model.from_pretrained(tmp_path / "df11")
    stored, state = load_file(tmp_path / "df11" / "model.safetensors"), model.state_dict()
    assert stored.keys() == state.keys() and all(same(stored[name], state[name]) for name in stored)


def test_shared_weights_are_decoded_for_both_layers(llama, tmp_path):
    df11.compress_model(llama, save_path=tmp_path / "df11")
    assert "lm_head.weight" not in df11.load_state_dict(tmp_path / "df11")
    model = df11.DFloat11Model.from_pretrained(tmp_path / "df11")
    asked = ids(1, 600)
    with torch.no_grad():
        assert same(llama(asked).logits, model(asked).logits)
        said = {"do_sample": False, "max_new_tokens": 8, "pad_token_id": 0}
        assert torch.equal(llama.generate(asked, **said), model.generate(asked, **said))


def test_blocks_are_decoded_together(llama, tmp_path):
    """Patterns as the package's own: the weights of a layer are one run; a pattern inside of it is another."""
    layer = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    patterns = {r"model\.layers\.\d+": layer, r"model\.layers\.\d+\.self_attn\.o_proj": [], r"model\.embed_tokens": []}
    summary = df11.compress_model(llama, patterns, save_path=tmp_path / "df11", save_single_file=False)
    assert summary.modules == 5
    assert (tmp_path / "df11" / "model_layers_1.safetensors").exists()
    model = df11.DFloat11Model.from_pretrained(tmp_path / "df11")
    asked = ids(2, 600)
    with torch.no_grad():
        for _ in range(2):
            assert same(llama(asked).logits, model(asked).logits)
    inner = next(group for group in model.df11.groups if group.name.endswith("o_proj"))
    outer = next(group for group in model.df11.groups if group.name == "model.layers.0")
    assert inner.offset >= outer.size


def test_models_without_a_configuration_are_passed_in(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(50, 32, padding_idx=40)
            self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
            self.layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
            self.out = nn.Linear(32, 10)

        def forward(self, asked):
            hidden = self.table(input=asked)
            hidden = self.attention(hidden, hidden, hidden)[0]
            return self.out(self.layer(hidden))

    torch.manual_seed(4)
    plain = Net().to(torch.bfloat16).eval()
    df11.compress_model(plain, save_path=tmp_path / "df11")
    with pytest.raises(mithril.UnsupportedError, match="bfloat16_model"):
        df11.DFloat11Model.from_pretrained(tmp_path / "df11")
    with torch.device("meta"):
        empty = Net().to(torch.bfloat16)
    model = df11.DFloat11Model.from_pretrained(tmp_path / "df11", bfloat16_model=empty)
    asked = ids(3, 50)
    with torch.no_grad():
        assert same(plain(asked), model(asked))
        assert same(plain(asked[:, :0]), model(asked[:, :0]))
    assert model.table.padding_idx == 40
    with pytest.raises(IndexError):
        model(torch.tensor([[50]]))
    with pytest.raises(IndexError):
        model(torch.tensor([[-1]]))
    with torch.inference_mode():
        assert same(plain(asked), model(asked))


def test_compressed_weights_are_never_computed_with(bert, tmp_path):
    df11.compress_model(bert, save_path=tmp_path / "df11")
    model = df11.DFloat11Model.from_pretrained(tmp_path / "df11")
    weight = model.pooler.dense.weight
    assert weight.shape == (64, 64) and weight.dtype == torch.bfloat16 and "Compressed" in repr(weight)
    for use in (lambda: nn.functional.linear(torch.zeros(1, 64, dtype=torch.bfloat16), weight), lambda: weight + 1):
        with pytest.raises(RuntimeError, match="compressed"):
            use()
    # The buffer is written again before gradients are taken: an error, not wrong gradients.
    hidden = torch.randn(1, 3, 64, dtype=torch.bfloat16, requires_grad=True)
    output = model.encoder(hidden).last_hidden_state
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_interrupted_and_parallel_runs(bert, tmp_path):
    df11.compress_model(bert, save_path=tmp_path / "df11")
    model = df11.DFloat11Model.from_pretrained(tmp_path / "df11")
    asked = ids(2, 700)
    with torch.no_grad():
        expected = bert(asked).last_hidden_state
        failures = []

        def interrupt(module, args):
            raise failures[-1]

        handle = model.encoder.layer[1].output.dense.register_forward_pre_hook(interrupt)
        for failure in (ValueError("no"), KeyboardInterrupt()):
            failures.append(failure)
            with pytest.raises(type(failure)):
                model(asked)
        handle.remove()
        assert same(expected, model(asked).last_hidden_state)
    refused = []

    def run_elsewhere(module, args):
        def run():
            try:
                model.pooler.dense(torch.zeros(1, 64, dtype=torch.bfloat16))
            except RuntimeError as error:
                refused.append(str(error))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    model.encoder.layer[0].output.dense.register_forward_pre_hook(run_elsewhere)
    with torch.no_grad():
        assert same(expected, model(asked).last_hidden_state)
    assert len(refused) == 1 and "another thread" in refused[0]


def test_files_come_back_byte_for_byte(bert, tmp_path):
    source = tmp_path / "model"
    source.mkdir()
    tensors = bert.state_dict()
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[:9], "model-00002-of-00002.safetensors": names[9:]}
    for file, own in shards.items():
        save_file({name: tensors[name].contiguous() for name in own}, source / file, {"format": "pt"})
    index = {"metadata": {"total_size": 1}, "weight_map": {name: file for file, own in shards.items() for name in own}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    (source / "config.json").write_text(bert.config.to_json_string())
    told = []
    summary = df11.compress_model(source, save_path=tmp_path / "df11", progress=lambda *step: told.append(step))
    assert summary.modules == 16 and told[-1][0] == told[-1][1] == summary.original_size
    assert df11.decompress_model(tmp_path / "df11", tmp_path / "back") == []
    for file in source.iterdir():
        assert file.read_bytes() == (tmp_path / "back" / file.name).read_bytes(), file
    assert {file.name for file in source.iterdir()} == {file.name for file in (tmp_path / "back").iterdir()}
    state = df11.load_state_dict(tmp_path / "df11")
    assert state.keys() == tensors.keys() and all(same(state[name], tensors[name]) for name in tensors)


def test_parts_of_several_machines_are_merged(bert, tmp_path):
    options = {"save_single_file": False}
    for low, high in ((0, 7), (7, 16)):
        df11.compress_model(bert, save_path=tmp_path / f"part{low}", block_range=(low, high), **options)
    parts = [str(tmp_path / "part0"), str(tmp_path / "part7")]
    command = [sys.executable, "-m", "mithril", "merge", *parts, "-o", str(tmp_path / "merged")]
    subprocess.run(command, check=True, capture_output=True)
    df11.compress_model(bert, save_path=tmp_path / "whole", **options)
    assert {file.name for file in (tmp_path / "merged").glob("*.safetensors")} == {
        file.name for file in (tmp_path / "whole").glob("*.safetensors")
    }
    model = df11.DFloat11Model.from_pretrained(tmp_path / "merged")
    with torch.no_grad():
        assert same(bert(ids(1, 700)).last_hidden_state, model(ids(1, 700)).last_hidden_state)


def test_weights_that_cannot_be_coded_stay(tmp_path):
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)).to(torch.bfloat16)
    with torch.no_grad():
        net[1].weight[3, 4] = float("inf")
    summary = df11.compress_model(net, save_path=tmp_path / "df11")
    assert summary.modules == 2 and "exponent of 255" in summary.kept["1"]
    config = json.loads((tmp_path / "df11" / "config.json").read_text())
    assert list(config["dfloat11_config"]["pattern_dict"]) == ["0", "2"]
    state = df11.load_state_dict(tmp_path / "df11")
    assert all(same(state[name], tensor) for name, tensor in net.state_dict().items())


def test_environment(bert, tmp_path, monkeypatch):
    df11.compress_model(bert, save_path=tmp_path / "root" / "bert" / "text_encoder")
    monkeypatch.setenv("MITHRIL_DF11_ROOT", str(tmp_path / "root"))
    for path, component in (("bert/text_encoder", None), ("bert", "text_encoder")):
        assert df11.DFloat11Model.from_pretrained(path, component=component).df11.compressed_bytes
    monkeypatch.setenv("MITHRIL_DF11_ROOT", str(tmp_path / "root" / "bert"))
    assert "pooler.dense.weight" in df11.load_state_dict(None, component="text_encoder")
    with pytest.raises(mithril.NotFoundError, match="MITHRIL_DF11_ROOT"):
        df11.load_state_dict("other")
    monkeypatch.setenv("MITHRIL_DF11_CPU_OFFLOAD", "2")
    with pytest.raises(ValueError, match="0 or 1"):
        df11.DFloat11Model.from_pretrained("text_encoder")
    monkeypatch.setenv("MITHRIL_DF11_CPU_OFFLOAD", "0")
    with pytest.raises(mithril.UnsupportedError, match="cpu_offload"):
        df11.DFloat11Model.from_pretrained("text_encoder", "cuda")
    monkeypatch.setenv("MITHRIL_DF11_CPU_OFFLOAD", "1")
    assert df11.DFloat11Model.from_pretrained("text_encoder").df11.compressed_bytes
    monkeypatch.delenv("MITHRIL_DF11_ROOT")
    with pytest.raises(ValueError, match="MITHRIL_DF11_ROOT"):
        df11.load_state_dict(None)


def test_bad_input_is_refused(bert, tmp_path):
    df11.compress_model(bert, save_path=tmp_path / "df11")
    with pytest.raises(ValueError, match="exists already"):
        df11.compress_model(bert, save_path=tmp_path / "df11")
    df11.compress_model(bert, save_path=tmp_path / "df11", replace=True)
    with pytest.raises(ValueError, match="no kernel"):
        df11.compress_model(bert, save_path=tmp_path / "x", threads_per_block=500)
    with pytest.raises(ValueError, match="BF16"):
        df11.compress_model(nn.Linear(4, 4), save_path=tmp_path / "x")
    with pytest.raises(ValueError, match="no such weight"):
        df11.DFloat11Model.from_pretrained(tmp_path / "df11", bfloat16_model=nn.Linear(3, 3))
    assert not (tmp_path / "x").exists() and not list(tmp_path.glob(".*"))
    file = tmp_path / "df11" / "model.safetensors"
    state = load_file(file)
    state["pooler.dense.encoded_exponent"].fill_(255)
    save_file(state, file)
    with pytest.raises(mithril.CorruptError, match=r"pooler\.dense"):
        df11.load_state_dict(tmp_path / "df11")
    model = df11.DFloat11Model.from_pretrained(tmp_path / "df11")
    with torch.no_grad(), pytest.raises(mithril.CorruptError, match=r"pooler\.dense"):
        model(ids(1, 700))
    del state["pooler.dense.gaps"]
    save_file(state, file)
    with pytest.raises(mithril.CorruptError, match="gaps"):
        df11.load_state_dict(tmp_path / "df11")


def test_files_need_no_torch(bert, tmp_path):
    bert.config.save_pretrained(tmp_path / "model")
    save_file(
        {name: tensor.contiguous() for name, tensor in bert.state_dict().items()}, tmp_path / "model" / "model.safetensors"
    )
    code = f"""
import sys
from mithril import df11
assert df11.compress_model({str(tmp_path / "model")!r}, save_path={str(tmp_path / "df11")!r}, shared_memory=49152).modules
df11.decompress_model({str(tmp_path / "df11")!r}, {str(tmp_path / "back")!r})
assert not {{"torch", "numpy", "transformers"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    name = "model.safetensors"
    assert (tmp_path / "model" / name).read_bytes() == (tmp_path / "back" / name).read_bytes()
    assert Path(tmp_path / "df11" / "df11_source.json").exists()
