"""Layers of PyTorch whose weights stay coded: outputs of the plain model, bit for bit."""

from __future__ import annotations

import copy
import io
import pickle
import struct
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import mithril
from mithril.torch import (
    EntropyCodedEmbedding,
    EntropyCodedLinear,
    coding_report,
    compress_module,
    load_module,
    resident_bytes,
    save_module,
)


class Small(nn.Module):
    """An embedding, two layers, and an output that shares the embedding's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(500, 128, dtype=torch.bfloat16)
        self.first = nn.Linear(128, 192, dtype=torch.bfloat16)
        self.second = nn.Linear(192, 128, bias=False, dtype=torch.bfloat16)
        self.norm = nn.LayerNorm(128, dtype=torch.bfloat16)
        self.output = nn.Linear(128, 500, bias=False, dtype=torch.bfloat16)
        self.output.weight = self.embedding.weight

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        x = self.embedding(numbers)
        return self.output(self.norm(self.second(torch.relu(self.first(x)))))


def small(seed: int = 1) -> Small:
    torch.manual_seed(seed)
    model = Small()
    with torch.no_grad():
        # Weights as training leaves them: small, with a few far outside.
        for weight in (model.embedding.weight, model.first.weight, model.second.weight):
            weight.copy_(torch.randn(weight.shape) * 0.03)
            weight[0, :3] = torch.tensor([1e30, -1e-30, 0.0])
    return model


NUMBERS = torch.tensor([[3, 499, 0], [17, 3, 250]])


def bits(model: nn.Module) -> torch.Tensor:
    """Outputs as whole numbers: some are NaN, which equals nothing."""
    with torch.no_grad():
        return model(NUMBERS).view(torch.int16)


@pytest.mark.parametrize("kind", ["entropy", "fixed12"])
def test_outputs_are_those_of_the_plain_model(kind: str) -> None:
    plain = small()
    before = resident_bytes(plain)
    coded = compress_module(small(), kind)
    assert isinstance(coded.first, EntropyCodedLinear) and isinstance(coded.embedding, EntropyCodedEmbedding)
    assert coded.output.matrix is coded.embedding.matrix, "layers that share a weight share its codes"
    assert torch.equal(bits(coded), bits(plain))
    assert resident_bytes(coded) < 0.85 * before


@pytest.mark.parametrize("kind", ["entropy", "fixed12"])
def test_fused_products_differ_by_rounding_only(kind: str) -> None:
    torch.manual_seed(2)
    linear = nn.Linear(320, 130, dtype=torch.bfloat16)
    coded = EntropyCodedLinear.from_linear(linear, kind, arithmetic="fused")
    assert torch.equal(coded.decode(fresh=True), linear.weight)
    x = torch.randn(320)
    exact = linear.weight.double() @ x.double() + linear.bias.double()
    error = (coded(x).double() - exact).abs().max()
    assert error < 1e-5 * exact.abs().max(), error
    # More than one vector goes through torch.
    batch = torch.randn(4, 320, dtype=torch.bfloat16)
    assert torch.equal(coded(batch), linear(batch))


@pytest.mark.parametrize("kind", ["entropy", "fixed12"])
def test_states_round_trip(kind: str, tmp_path) -> None:
    coded = compress_module(small(3), kind)
    other = compress_module(small(4), kind)
    other.load_state_dict(coded.state_dict())
    save_module(coded, tmp_path / "model.safetensors")
    with torch.device("meta"):
        empty = Small()
    loaded = load_module(empty, tmp_path / "model.safetensors")
    assert torch.equal(bits(other), bits(coded)) and torch.equal(bits(loaded), bits(coded))


def test_models_that_mithril_quantised_are_loaded(tmp_path) -> None:
    torch.manual_seed(6)

    def layers() -> nn.Sequential:
        return nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 64)).bfloat16()

    plain = layers()
    (tmp_path / "plain").mkdir()
    save_file(plain.state_dict(), tmp_path / "plain" / "model.safetensors")
    command = ["mithril", "quantize", str(tmp_path / "plain"), "--bpw", "4", "-o", str(tmp_path / "coded")]
    assert mithril._mithril.run_cli(command) == 0
    coded = load_module(layers(), tmp_path / "coded" / "model.safetensors")
    assert [coded[at].matrix.kind for at in (0, 2)] == ["levels", "levels"]
    for at in (0, 2):
        weight = plain[at].weight.double()
        error = coded[at].decode(fresh=True).double() - weight
        assert error.square().sum() < 0.01 * weight.square().sum(), "20 dB at the least"
    x = torch.randn(3, 256, dtype=torch.bfloat16)
    with torch.no_grad():
        hidden = torch.relu(nn.functional.linear(x, coded[0].decode(fresh=True), plain[0].bias))
        wanted = nn.functional.linear(hidden, coded[2].decode(fresh=True), plain[2].bias)
        assert torch.equal(coded(x), wanted)


def test_gradients_reach_the_inputs() -> None:
    torch.manual_seed(5)
    linear = nn.Linear(64, 32, dtype=torch.bfloat16)
    coded = EntropyCodedLinear.from_linear(linear)
    second = EntropyCodedLinear.from_linear(nn.Linear(32, 64, dtype=torch.bfloat16))
    gradients = []
    for layer in (linear, coded):
        x = torch.ones(3, 64, dtype=torch.bfloat16, requires_grad=True)
        second(layer(x)).sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


def test_what_cannot_be_coded_stays_or_is_refused() -> None:
    single = nn.Linear(64, 32)
    with pytest.warns(UserWarning, match="0 of 1 layers"):
        assert compress_module(nn.Sequential(single))[0] is single
    with pytest.raises(ValueError, match="rounded"):
        EntropyCodedLinear.from_linear(single)
    exact = nn.Linear(64, 32)
    with torch.no_grad():
        exact.weight.copy_(exact.weight.bfloat16())
    x = torch.randn(2, 64)
    assert torch.equal(EntropyCodedLinear.from_linear(exact)(x), exact(x))
    with pytest.raises(ValueError, match="arithmetic"):
        EntropyCodedLinear.from_linear(exact, arithmetic="other")
    with pytest.raises(ValueError, match="fixed12"):
        EntropyCodedLinear.from_linear(exact, "other")
    with pytest.raises(ValueError, match="no coded layers"):
        save_module(nn.Sequential(single), "never.safetensors")
    with pytest.raises(IndexError, match="no row"):
        EntropyCodedEmbedding.from_embedding(nn.Embedding(4, 8, dtype=torch.bfloat16))(torch.tensor([4]))


def test_damaged_and_wrong_states_are_refused() -> None:
    coded = EntropyCodedLinear.from_linear(nn.Linear(64, 32, dtype=torch.bfloat16))
    state = coded.state_dict()
    damaged = {name: part.clone() for name, part in state.items()}
    damaged["low_bits"][5, 7] ^= 1
    with pytest.raises(RuntimeError, match=r"damaged|checksum"):
        coded.load_state_dict(damaged)
    other = EntropyCodedLinear.from_linear(nn.Linear(96, 32, dtype=torch.bfloat16))
    with pytest.raises(RuntimeError, match="32 x 64"):
        other.load_state_dict(state)
    with pytest.raises(RuntimeError, match="compressed"):
        coded.load_state_dict({name: part for name, part in state.items() if name != "compressed"})
    with pytest.raises(mithril.CorruptError, match=r"`0`: .*cut off"):
        load_module(nn.Sequential(nn.Linear(64, 32)), {"0.compressed": torch.zeros(7, dtype=torch.uint8)})
    with pytest.raises(mithril.MithrilError):
        mithril._mithril.CodedMatrix({"compressed": b"MECQ"})


def gguf_file(tensors: dict[str, tuple[int, tuple[int, int], bytes]]) -> bytes:
    """A GGUF file of matrices: type, rows and columns, blocks."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 1)
    head += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    offset, body = 0, b""
    for name, (kind, (rows, columns), blocks) in tensors.items():
        head += text(name) + struct.pack("<IQQIQ", 2, columns, rows, kind, offset)
        padded = blocks + bytes(-len(blocks) % 32)
        body += padded
        offset += len(padded)
    return head + bytes(-len(head) % 32) + body


def q4_1(rows: int, columns: int, seed: int) -> tuple[bytes, torch.Tensor]:
    """Blocks of Q4_1, and the weights that they stand for."""
    random = np.random.default_rng(seed)
    n = rows * columns // 32
    codes = np.clip(np.rint(random.normal(7.5, 2.5, (n, 32))), 0, 15).astype(np.uint8)
    scales = random.uniform(0.005, 0.02, n).astype(np.float16)
    least = (-7.5 * scales.astype(np.float32)).astype(np.float16)
    packed = codes[:, :16] | codes[:, 16:] << 4
    blocks = b"".join(scales[at : at + 1].tobytes() + least[at : at + 1].tobytes() + packed[at].tobytes() for at in range(n))
    weights = scales.astype(np.float32)[:, None] * codes.astype(np.float32) + least.astype(np.float32)[:, None]
    return blocks, torch.from_numpy(weights.reshape(rows, columns))


class Quantised(nn.Module):
    """An embedding whose table is the output too, and a layer between."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(96, 64)
        self.layer = nn.Linear(64, 64)
        self.output = nn.Linear(64, 96, bias=False)
        self.output.weight = self.embed.weight

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.output(torch.tanh(self.layer(self.embed(numbers))))


def name_in_file(name: str) -> str:
    return "embed.weight" if name == "output" else f"{name}.weight"


@pytest.fixture(params=[torch.float32, torch.bfloat16])
def quantised(request, tmp_path) -> tuple[Quantised, str]:
    """A model whose weights came from a GGUF file, and that file entropy-coded."""
    model = Quantised().to(request.param)
    tensors = {}
    for seed, layer in enumerate(("embed", "layer")):
        weight = getattr(model, layer).weight
        blocks, values = q4_1(*weight.shape, seed)
        tensors[f"{layer}.weight"] = (3, tuple(weight.shape), blocks)
        with torch.no_grad():
            weight.copy_(values)
    (tmp_path / "model.gguf").write_bytes(gguf_file(tensors))
    command = ["mithril", "convert", str(tmp_path / "model.gguf"), "--to", "ecq", "-o", str(tmp_path / "coded")]
    assert mithril._mithril.run_cli(command) == 0
    return model, str(tmp_path / "coded" / "model.safetensors")


def test_weights_that_came_quantised_stay_coded(quantised) -> None:
    plain, source = quantised
    coded = compress_module(copy.deepcopy(plain), "ecq", source=source, names=name_in_file)
    assert [type(child) for child in coded.children()] == [EntropyCodedEmbedding, EntropyCodedLinear, EntropyCodedLinear]
    assert coded.output.matrix is coded.embed.matrix and coded.layer.matrix.layout == "Q4_1"
    numbers = torch.tensor([3, 95, 0, 3])
    with torch.no_grad():
        assert torch.equal(coded(numbers), plain(numbers))
    assert resident_bytes(coded) < 0.4 * resident_bytes(plain)
    # As copies and by pickle.
    for other in (copy.deepcopy(coded), pickle.loads(pickle.dumps(coded))):
        with torch.no_grad():
            assert torch.equal(other(numbers), plain(numbers))
    # A state goes out and in again.
    other = compress_module(copy.deepcopy(plain), "ecq", source=source, names=name_in_file)
    with torch.no_grad():
        other.layer.bias.zero_()
    other.load_state_dict(coded.state_dict())
    with torch.no_grad():
        assert torch.equal(other(numbers), plain(numbers))


def test_quantised_weights_are_multiplied_from_their_codes(quantised) -> None:
    plain, source = quantised
    coded = compress_module(copy.deepcopy(plain), "ecq", source=source, names=name_in_file, arithmetic="fused").layer
    plain = plain.layer
    weights = torch.empty(plain.weight.shape)
    coded.matrix.decode_rows(0, len(weights), weights.numpy(), 1)
    for vectors in (1, 3, 8):
        x = torch.randn(vectors, plain.in_features)
        wanted = torch.empty(vectors, plain.out_features)
        mithril._mithril.singles_multiply(weights.numpy(), plain.in_features, x.numpy(), wanted.numpy(), 1)
        with torch.no_grad():
            assert torch.equal(coded(x), wanted + plain.bias.float())
        torch.testing.assert_close(wanted, x @ weights.T)
    # More vectors, and those that take gradients, go through torch.
    x = torch.randn(9, plain.in_features, dtype=plain.weight.dtype)
    assert torch.equal(coded(x), plain(x))
    x = x[:2].clone().requires_grad_()
    coded(x).sum().backward()
    assert x.grad is not None
    assert coded(x.detach()[:0]).shape == (0, plain.out_features)


def test_quantised_weights_that_are_others_stay_plain(quantised) -> None:
    plain, source = quantised
    with torch.no_grad():
        plain.layer.weight[5, 5] += 1
    with pytest.warns(UserWarning, match="2 of 3 layers .*; 1 left as they are: its matrix in the source decodes to other"):
        coded = compress_module(plain, "ecq", source=source, names=name_in_file)
    assert isinstance(coded.embed, EntropyCodedEmbedding) and type(coded.layer) is nn.Linear
    with pytest.raises(ValueError, match="source"):
        compress_module(plain, "ecq")
    with pytest.raises(ValueError, match="source"):
        compress_module(plain, "entropy", source=source)
    damaged = load_file(source)
    damaged["embed.weight.scales"] = damaged["embed.weight.scales"][:-3].clone()
    with pytest.raises(mithril.MithrilError, match=r"`embed.weight`"):
        compress_module(Quantised().to("meta"), "ecq", source=damaged, names=name_in_file)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_weights_that_are_not_coded_are_said(dtype: torch.dtype) -> None:
    plain = nn.Sequential(nn.Linear(8, 8, dtype=dtype), nn.Sequential(nn.Embedding(9, 8, dtype=dtype)))
    with pytest.warns(UserWarning, match=rf"^0 of 2 layers .*; 2 left as they are: weights of {dtype}") as caught:
        assert compress_module(plain) is plain
    # At the line of the caller.
    assert caught[0].filename == __file__
    assert type(plain[0]) is nn.Linear
    report = coding_report(plain)
    assert (report.coded, list(report.kept)) == ((), ["0", "1.0"])
    assert str(report) == str(caught[0].message)


def test_a_model_that_is_coded_in_part_is_said_to_be() -> None:
    plain = nn.ModuleDict({"a": nn.Linear(8, 8, dtype=torch.bfloat16), "b": nn.Linear(8, 8)})
    with pytest.warns(UserWarning, match="1 of 2 layers with weights are coded; 1 left as they are: weights of torch.float32"):
        compress_module(plain)
    assert coding_report(plain).coded == ("a",)
    assert "kind=entropy" in repr(plain)
    # Nothing is said of what is documented to stay: subclasses, and weights that change.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = compress_module(
            nn.ModuleDict(
                {
                    "a": nn.Linear(8, 8, dtype=torch.bfloat16),
                    "b": nn.Embedding(8, 8, max_norm=1.0, dtype=torch.bfloat16),
                    "c": nn.MultiheadAttention(8, 2, dtype=torch.bfloat16),
                }
            )
        )
    kept = coding_report(whole).kept
    assert "max_norm" in kept["b"] and "subclass" in kept["c.out_proj"]
    with pytest.warns(UserWarning, match="no Linear and no Embedding"):
        compress_module(nn.Sequential(nn.ReLU()))


def test_single_values_of_bf16_are_coded_without_a_word() -> None:
    plain = nn.Sequential(nn.Linear(8, 8, dtype=torch.bfloat16)).float()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(compress_module(plain)[0], EntropyCodedLinear)


def test_a_layer_by_itself_is_returned_coded() -> None:
    layer = nn.Linear(64, 32, dtype=torch.bfloat16)
    x = torch.randn(3, 64, dtype=torch.bfloat16)
    coded = compress_module(layer)
    assert isinstance(coded, EntropyCodedLinear)
    assert torch.equal(coded(x), layer(x))


@pytest.mark.parametrize("kind", ["entropy", "fixed12"])
def test_coded_modules_are_copied_and_pickled(kind: str) -> None:
    coded = compress_module(small(5), kind)
    wanted = bits(coded)
    twin = copy.deepcopy(coded)
    assert torch.equal(bits(twin), wanted)
    # Codes never change, so that a copy needs none of its own.
    assert twin.first.matrix is coded.first.matrix
    assert twin.first.bias is not coded.first.bias
    assert torch.equal(bits(pickle.loads(pickle.dumps(coded))), wanted)
    file = io.BytesIO()
    torch.save(coded, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(bits(loaded), wanted)
    assert loaded.output.matrix is loaded.embedding.matrix
    assert resident_bytes(loaded) == resident_bytes(coded)
    with pytest.raises(mithril.MithrilError):
        type(coded.first.matrix)({"compressed": b"damaged"})
