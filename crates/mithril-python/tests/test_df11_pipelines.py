"""DFloat11 with a real pipeline of diffusers, and with compressed weights on another device than the CPU."""

import subprocess
import sys
import warnings

import pytest
import torch
from transformers import BertConfig, BertModel, CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

import mithril
from mithril import df11

with warnings.catch_warnings():
    # What diffusers thinks of the packages around it.
    warnings.simplefilter("ignore")
    from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel


def same(a, b):
    return a.shape == b.shape and torch.equal(a.contiguous().view(torch.int16), b.contiguous().view(torch.int16))


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    """A small pipeline as diffusers saves it: components in directories of their own, one of them in shards."""
    torch.manual_seed(6)
    parts = {
        "transformer": FluxTransformer2DModel(
            patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=4,
            joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8],
        ),
        "text_encoder": CLIPTextModel(
            CLIPTextConfig(
                hidden_size=32, intermediate_size=64, num_attention_heads=4, num_hidden_layers=2, vocab_size=500,
                projection_dim=32, bos_token_id=0, eos_token_id=1, pad_token_id=1,
            )
        ),
        "text_encoder_2": T5EncoderModel(T5Config(d_model=32, d_ff=64, d_kv=8, num_heads=4, num_layers=2, vocab_size=500)),
        "vae": AutoencoderKL(
            sample_size=32, block_out_channels=(8,), latent_channels=1, norm_num_groups=1, use_quant_conv=False,
            use_post_quant_conv=False, shift_factor=0.06, scaling_factor=1.5,
        ),
    }  # fmt: skip
    parts = {name: part.to(torch.bfloat16).eval() for name, part in parts.items()}
    made = FluxPipeline(scheduler=FlowMatchEulerDiscreteScheduler(), tokenizer=None, tokenizer_2=None, **parts)
    folder = tmp_path_factory.mktemp("pipeline") / "plain"
    made.save_pretrained(folder, max_shard_size="200KB")
    return made, folder


def generate(pipeline):
    generator = torch.Generator().manual_seed(7)
    prompt = torch.randn(1, 8, 32, generator=generator).bfloat16()
    pooled = torch.randn(1, 32, generator=generator).bfloat16()
    pipeline.set_progress_bar_config(disable=True)
    options = {"height": 16, "width": 16, "num_inference_steps": 2, "output_type": "latent", "generator": generator}
    return pipeline(prompt_embeds=prompt, pooled_prompt_embeds=pooled, **options).images


def test_pipelines_run_with_compressed_components(pipeline, tmp_path):
    plain, folder = pipeline
    assert (folder / "transformer" / "diffusion_pytorch_model.safetensors.index.json").exists()
    summary = df11.compress_model(folder, save_path=tmp_path / "df11")
    assert summary.modules > 40
    # Most of it is convolutions, so that diffusers still loads it by itself.
    assert (tmp_path / "df11" / "vae" / "diffusion_pytorch_model.safetensors").exists()
    expected = generate(plain)
    names = ("transformer", "text_encoder", "text_encoder_2")
    models = {name: df11.DFloat11Model.from_pretrained(tmp_path / "df11", component=name) for name in names}
    tokens = torch.randint(0, 500, (2, 9))
    with torch.no_grad():
        for name in names[1:]:
            found, wanted = models[name](tokens), getattr(plain, name)(tokens)
            assert same(found.last_hidden_state, wanted.last_hidden_state)
    assert isinstance(models["transformer"], FluxTransformer2DModel)
    again = FluxPipeline(scheduler=plain.scheduler, vae=plain.vae, tokenizer=None, tokenizer_2=None, **models)
    assert same(generate(again), expected)


def test_pipelines_come_back_and_are_compared(pipeline, tmp_path):
    folder = pipeline[1]

    def run(*arguments, code=0):
        command = [sys.executable, "-m", "mithril", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    run("convert", folder, "--to", "df11", "-o", tmp_path / "df11")
    run("convert", tmp_path / "df11", "--to", "safetensors", "-o", tmp_path / "back")
    for file in folder.rglob("*"):
        if file.is_file():
            assert (tmp_path / "back" / file.relative_to(folder)).read_bytes() == file.read_bytes(), file
    assert "tensors are equal, bit for bit" in run("compare", folder, tmp_path / "df11")
    assert "transformer/" in run("diagnose", tmp_path / "df11")
    assert "`transformer/" in run("diagnose", tmp_path / "df11", "--shared-memory", "5000", code=1)
    assert "device memory" in run("diagnose", tmp_path / "df11", "--vram", "1000", code=1)


def test_a_component_alone_is_coded_and_runs(pipeline, tmp_path):
    plain, folder = pipeline
    df11.compress_model(folder, save_path=tmp_path / "vae", component="vae")
    found = df11.DFloat11Model.from_pretrained(tmp_path / "vae")
    picture = torch.randn(1, 3, 32, 32).bfloat16()
    with torch.no_grad():
        wanted = plain.vae.encode(picture).latent_dist.mean
        assert same(found.encode(picture).latent_dist.mean, wanted)
        assert same(found.decode(wanted).sample, plain.vae.decode(wanted).sample)
    # The module itself instead of its files.
    df11.compress_model(plain.transformer, save_path=tmp_path / "transformer")
    df11.compress_model(folder, save_path=tmp_path / "of-files", component="transformer")
    name = "model.safetensors"
    assert (tmp_path / "transformer" / name).read_bytes() == (tmp_path / "of-files" / name).read_bytes()
    with pytest.raises(mithril.NotFoundError):
        df11.compress_model(folder, save_path=tmp_path / "x", component="prior")


def test_compressed_weights_feed_another_device(tmp_path):
    """`lazy` is a device of torch with memory of its own, which any machine has."""
    code = f"""
import torch
import torch._lazy.ts_backend
from transformers import BertConfig, BertModel
from mithril import df11

torch._lazy.ts_backend.init()
torch.manual_seed(8)
config = BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=160, vocab_size=700)
plain = BertModel(config).to(torch.bfloat16).eval()
df11.compress_model(plain, save_path={str(tmp_path / "df11")!r})
model = df11.DFloat11Model.from_pretrained({str(tmp_path / "df11")!r}, "lazy", cpu_offload=True)
assert {{tensor.device.type for tensor in [*model.parameters(), *model.buffers()]}} == {{"lazy"}}
plain.to("lazy")
for seed in range(3):
    tokens = torch.randint(0, 700, (2, 19)).to("lazy")
    with torch.no_grad():
        expected, found = plain(tokens).last_hidden_state.cpu(), model(tokens).last_hidden_state.cpu()
    assert torch.equal(expected.view(torch.int16), found.view(torch.int16))
group = model.df11.groups[0].coded()["luts"]
print(group.device, model.df11.device.type)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "cpu lazy", done.stderr


def test_offloading_is_of_no_consequence_on_the_cpu(tmp_path):
    torch.manual_seed(9)
    config = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, vocab_size=100)
    plain = BertModel(config).to(torch.bfloat16).eval()
    df11.compress_model(plain, save_path=tmp_path / "df11")
    tokens = torch.randint(0, 100, (1, 7))
    for cpu_offload in (True, False, None):
        model = df11.DFloat11Model.from_pretrained(tmp_path / "df11", cpu_offload=cpu_offload)
        with torch.no_grad():
            assert same(model(tokens).last_hidden_state, plain(tokens).last_hidden_state)
