"""Small FLUX.1 pipelines with random weights, in the diffusers folder layout.

Each model differs from the others in what a loader or an operator could get wrong: guidance, shift, sharding, dtype, CLIP's
two ways of finding the end of the prompt, tokenizer files, widths that are no power of two.
Weights are scaled by their fan-in so that activations keep a size near one through every layer: a reference whose values
vanish would accept anything.
"""
import json
import math
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from safetensors.torch import load_file, save_file
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel, T5TokenizerFast

SCHEDULE = dict(num_train_timesteps=1000, base_image_seq_len=256, max_image_seq_len=4096, base_shift=0.5, max_shift=1.15)


@dataclass
class Tiny:
    """One model and the picture that is drawn with it."""

    name: str
    seed_weights: int
    dtype: torch.dtype
    clip_files: tuple  # which of CLIP's tokenizer files the folder holds; published FLUX.1 folders have no tokenizer.json
    t5_length: int  # model_max_length of tokenizer_2, and the text length of the case
    transformer: dict
    clip: dict
    t5: dict
    vae: dict
    scheduler: dict
    case: dict
    shard_bytes: dict = field(default_factory=dict)  # component -> max_shard_size
    clip_eos_legacy: bool = False  # eos_token_id 2, as in the published FLUX.1 configuration
    clip_position_ids: bool = False  # the int64 buffer that old CLIP files carry
    t5_embed_tokens_twice: bool = False  # encoder.embed_tokens.weight beside shared.weight


MODELS = {
    "dev-tiny": Tiny(
        name="dev-tiny", seed_weights=101, dtype=torch.bfloat16, clip_files=("vocab.json", "merges.txt"), t5_length=64,
        transformer=dict(num_layers=2, num_single_layers=3, num_attention_heads=2, attention_head_dim=16,
                         axes_dims_rope=(4, 6, 6), joint_attention_dim=32, pooled_projection_dim=32, guidance_embeds=True),
        clip=dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2),
        t5=dict(d_model=32, d_kv=8, d_ff=80, num_layers=2, num_heads=4),
        vae=dict(block_out_channels=(8, 16, 16, 24), layers_per_block=2, norm_num_groups=8,
                 scaling_factor=0.3611, shift_factor=0.1159, force_upcast=True),
        scheduler=dict(use_dynamic_shifting=True, shift=3.0),
        case=dict(prompt="A red apple, 3D rendered emoji", seed=42, width=64, height=48, steps=4, guidance=3.5),
        shard_bytes={"transformer": "160KB", "text_encoder_2": "50KB"},
        clip_eos_legacy=True, clip_position_ids=True,
    ),
    "schnell-tiny": Tiny(
        name="schnell-tiny", seed_weights=202, dtype=torch.float32, clip_files=("tokenizer.json",), t5_length=256,
        transformer=dict(num_layers=1, num_single_layers=2, num_attention_heads=2, attention_head_dim=16,
                         axes_dims_rope=(4, 4, 8), joint_attention_dim=32, pooled_projection_dim=32, guidance_embeds=False),
        clip=dict(hidden_size=32, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4),
        t5=dict(d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2),
        vae=dict(block_out_channels=(4, 8, 8, 12), layers_per_block=1, norm_num_groups=4,
                 scaling_factor=0.3611, shift_factor=0.1159, force_upcast=True),
        scheduler=dict(use_dynamic_shifting=False, shift=1.0),
        case=dict(prompt="two cats and a dog on the beach at sunset", seed=0, width=64, height=64, steps=4, guidance=0.0),
    ),
    "odd-tiny": Tiny(
        name="odd-tiny", seed_weights=303, dtype=torch.bfloat16, clip_files=("tokenizer.json",), t5_length=37,
        transformer=dict(num_layers=2, num_single_layers=2, num_attention_heads=3, attention_head_dim=12,
                         axes_dims_rope=(2, 4, 6), joint_attention_dim=44, pooled_projection_dim=36, guidance_embeds=True),
        clip=dict(hidden_size=36, intermediate_size=100, num_hidden_layers=3, num_attention_heads=3),
        t5=dict(d_model=44, d_kv=12, d_ff=70, num_layers=3, num_heads=5),
        vae=dict(block_out_channels=(6, 12, 18, 18), layers_per_block=1, norm_num_groups=3,
                 scaling_factor=1.25, shift_factor=-0.03, force_upcast=False),
        scheduler=dict(use_dynamic_shifting=True, shift=1.0),
        case=dict(prompt="piñata, flat noto emoji", seed=2**32 + 5, width=48, height=80, steps=5, guidance=2.25),
        t5_embed_tokens_twice=True,
    ),
}


def write_tokenizers(demo: Path, out: Path, clip_files: tuple, t5_length: int) -> tuple[int, int]:
    """Writes cut-down copies of the demo tokenizers: CLIP with 180 merges, T5 with 600 pieces and ten sentinels.
    Returns the two vocabulary sizes."""
    merges = [tuple(line.split(" ")) for line in (demo / "tokenizer/merges.txt").read_text("utf8").splitlines()[1:]][:180]
    vocab = json.loads((demo / "tokenizer/vocab.json").read_text("utf8"))
    symbols = [token for token, index in sorted(vocab.items(), key=lambda item: item[1])][:512]  # bytes, bytes + </w>
    tokens = symbols + list(dict.fromkeys(a + b for a, b in merges if a + b not in symbols))
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    vocab = {token: i for i, token in enumerate(tokens)}
    CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=77).save_pretrained(out / "tokenizer")
    (out / "tokenizer/vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), "utf8")
    lines = ["#version: 0.2"] + [" ".join(pair) for pair in merges]
    (out / "tokenizer/merges.txt").write_text("\n".join(lines) + "\n", "utf8")
    for name in {"tokenizer.json", "vocab.json", "merges.txt"} - set(clip_files):
        (out / "tokenizer" / name).unlink()

    pieces = json.loads((demo / "tokenizer_2/tokenizer.json").read_text("utf8"))["model"]["vocab"]
    single = [p for p in pieces[3:] if len(p[0]) == 1]
    longer = sorted((p for p in pieces[3:] if len(p[0]) > 1), key=lambda p: (-p[1], p[0]))
    kept = [tuple(p) for p in pieces[:3] + single + longer][:600] + [(f"<extra_id_{i}>", 0.0) for i in range(9, -1, -1)]
    t5 = T5TokenizerFast(vocab=kept, extra_ids=10, model_max_length=t5_length)
    t5.save_pretrained(out / "tokenizer_2")
    return len(tokens), len(t5)


def standard_deviation(name: str, shape: torch.Size, t5: bool, d_kv: int) -> float:
    fan_in = shape[1:].numel()
    if t5:
        if name == "shared.weight" or "relative_attention_bias" in name:
            return 1.0
        # T5 does not divide its scores by sqrt(d_kv); its training puts that factor into the query weights.
        return 1.5 * (fan_in * d_kv) ** -0.5 if name.endswith("SelfAttention.q.weight") else fan_in**-0.5
    if "token_embedding" in name:
        return 0.2
    if "position_embedding" in name:
        return 0.1
    return 1.2 * fan_in**-0.5


def damping() -> torch.Tensor:
    """One factor per sinusoid channel, so that the embedding changes by no more than about 10 per unit of t.

    A trained embedder is smooth in t. Random weights on the fast waves (1000 radians per unit) would not be: the last bit
    of t would then move the output by 1e-5 in float32, and bfloat16 would give another function altogether.
    """
    frequency = 1000 * torch.exp(-math.log(10000) * torch.arange(128) / 128)
    return (10 / (10 + frequency)).repeat(2)


def fill(module: torch.nn.Module, seed: int, t5_d_kv: int | None = None, output_gain: dict | None = None) -> None:
    """Draws every parameter in the order of its name."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(module.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                noise *= standard_deviation(name, parameter.shape, t5_d_kv is not None, t5_d_kv or 0)
                noise *= (output_gain or {}).get(name, 1.0)
            elif name.endswith("bias"):
                noise *= 0.1
            else:  # scales of norms
                noise = 1.0 + 0.15 * noise
                if name == "encoder.final_layer_norm.weight":
                    noise *= 0.3  # a trained T5 ends in small values
            if name.endswith(("timestep_embedder.linear_1.weight", "guidance_embedder.linear_1.weight")):
                noise *= damping()
            parameter.copy_(noise)


def build(model: Tiny, demo: Path, out: Path) -> None:
    """Writes the pipeline folder `out` from nothing."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    clip_vocab, t5_vocab = write_tokenizers(demo, out, model.clip_files, model.t5_length)
    # A published T5 table has more rows than the tokenizer has pieces (32128 for 32100); so has the small one here.
    t5_rows = t5_vocab + 6

    end = dict(bos_token_id=0, eos_token_id=2, pad_token_id=1) if model.clip_eos_legacy else dict(
        bos_token_id=clip_vocab - 2, eos_token_id=clip_vocab - 1, pad_token_id=clip_vocab - 1)
    clip = CLIPTextModel(CLIPTextConfig(
        vocab_size=clip_vocab, max_position_embeddings=77, hidden_act="quick_gelu", projection_dim=model.clip["hidden_size"],
        **model.clip, **end))
    t5 = T5EncoderModel(T5Config(
        vocab_size=t5_rows, feed_forward_proj="gated-gelu", pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
        tie_word_embeddings=False, **model.t5))
    transformer = FluxTransformer2DModel(patch_size=1, in_channels=64, **model.transformer)
    vae = AutoencoderKL(
        in_channels=3, out_channels=3, latent_channels=16, down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4, sample_size=64, use_quant_conv=False, use_post_quant_conv=False, **model.vae)

    fill(clip, model.seed_weights)
    fill(t5, model.seed_weights + 1, t5_d_kv=model.t5["d_kv"])
    fill(transformer, model.seed_weights + 2)
    # The picture should use its range, and leave it in places so that the clamp is seen.
    fill(vae, model.seed_weights + 3, output_gain={"decoder.conv_out.weight": 0.9})

    pipeline = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(**SCHEDULE, **model.scheduler),
        vae=vae.to(model.dtype), text_encoder=clip.to(model.dtype), text_encoder_2=t5.to(model.dtype),
        transformer=transformer.to(model.dtype),
        tokenizer=CLIPTokenizer.from_pretrained(out / "tokenizer"),
        tokenizer_2=T5TokenizerFast.from_pretrained(out / "tokenizer_2"))
    kept = {name: (out / name).rename(out / f".{name}") for name in ("tokenizer", "tokenizer_2")}
    pipeline.save_pretrained(out)
    for name, folder in kept.items():  # the files as written above, not as the library would write them again
        shutil.rmtree(out / name)
        folder.rename(out / name)
    for component, size in model.shard_bytes.items():
        shutil.rmtree(out / component)
        getattr(pipeline, component).save_pretrained(out / component, max_shard_size=size)

    if model.clip_position_ids:
        add_tensors(out / "text_encoder/model.safetensors", {"text_model.embeddings.position_ids": torch.arange(77)[None]})
    if model.t5_embed_tokens_twice:
        file = out / "text_encoder_2/model.safetensors"
        add_tensors(file, {"encoder.embed_tokens.weight": load_file(file)["shared.weight"].clone()})


def add_tensors(file: Path, more: dict) -> None:
    tensors = load_file(file)
    assert not tensors.keys() & more.keys(), (file, more.keys())
    save_file(tensors | more, file, metadata={"format": "pt"})
