"""Runs a FluxPipeline folder in diffusers and keeps what it computed on the way.

The reference is diffusers and transformers in float32 on the CPU (stored weights upcast), through the ordinary pipeline
call; forward hooks only look. Tensors lose their batch dimension of one.
Two more runs measure arithmetic error: float64 (the yardstick) and bfloat16 (what the field runs). Each component gets the
same inputs in all three, so its figure is its own error.
"""
import contextlib
import json
from pathlib import Path

import numpy as np
import torch
from diffusers import FluxPipeline
from transformers.models.t5 import modeling_t5


def load(folder: Path, dtype: torch.dtype) -> FluxPipeline:
    pipeline = FluxPipeline.from_pretrained(folder, dtype=dtype, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    for component in (pipeline.text_encoder, pipeline.text_encoder_2, pipeline.transformer, pipeline.vae):
        component.eval()
        # from_pretrained keeps some modules in float32 whatever it is told; the runs here are of one dtype.
        component.to(dtype)
    return pipeline


@contextlib.contextmanager
def true_float64():
    """Removes the float32 casts inside the libraries' forward passes, so that a float64 model computes in float64."""
    tensor_float, norm = torch.Tensor.float, modeling_t5.T5LayerNorm.forward

    def norm_float64(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    torch.Tensor.float = lambda self, *a, **k: self if self.dtype == torch.float64 else tensor_float(self, *a, **k)
    modeling_t5.T5LayerNorm.forward = norm_float64
    try:
        yield
    finally:
        torch.Tensor.float, modeling_t5.T5LayerNorm.forward = tensor_float, norm


class Recorder:
    """Keeps module outputs by name while `armed`."""

    def __init__(self):
        self.kept, self.armed, self.handles = {}, True, []

    def watch(self, module: torch.nn.Module, keep) -> None:
        def hook(_, args, kwargs, output):
            if self.armed:
                keep(self, args, kwargs, output)

        self.handles.append(module.register_forward_hook(hook, with_kwargs=True))

    def put(self, name: str, tensor: torch.Tensor) -> None:
        assert name not in self.kept, name
        self.kept[name] = (tensor[0] if tensor.ndim > 1 else tensor).detach().clone()

    def close(self) -> None:
        for handle in self.handles:
            handle.remove()


def watch_transformer(recorder: Recorder, transformer, probe_step: int, blocks: bool) -> None:
    """Inputs and outputs of one transformer call, the one of step `probe_step`."""
    calls = {"count": 0, "proj": 0}

    def begin(_, args, kwargs):
        recorder.armed = calls["count"] == probe_step
        calls["proj"] = 0
        if recorder.armed:
            recorder.put("transformer.in.hidden_states", kwargs["hidden_states"])
            recorder.put("transformer.in.sigma", kwargs["timestep"])
            if kwargs["guidance"] is not None:
                recorder.put("transformer.in.guidance", kwargs["guidance"])
        calls["count"] += 1

    recorder.handles.append(transformer.register_forward_pre_hook(begin, with_kwargs=True))

    def proj(r, args, kwargs, output):
        r.put(("transformer.time_proj", "transformer.guidance_proj")[calls["proj"]], output)
        calls["proj"] += 1

    def one(name):
        return lambda r, args, kwargs, output: r.put(name, output[0] if isinstance(output, tuple) else output)

    recorder.watch(transformer.time_text_embed.time_proj, proj)
    recorder.watch(transformer.time_text_embed, one("transformer.temb"))
    if blocks:
        recorder.watch(transformer.x_embedder, one("transformer.x_embedder"))
        recorder.watch(transformer.context_embedder, one("transformer.context_embedder"))
        for i, block in enumerate(transformer.transformer_blocks):
            def double(r, args, kwargs, output, i=i):
                r.put(f"transformer.double.{i}.txt", output[0])
                r.put(f"transformer.double.{i}.img", output[1])

            recorder.watch(block, double)
        for i, block in enumerate(transformer.single_transformer_blocks):
            recorder.watch(block, lambda r, args, kwargs, output, i=i: r.put(f"transformer.single.{i}", torch.cat(output, dim=1)))
        recorder.watch(transformer.norm_out, one("transformer.norm_out"))
    recorder.watch(transformer, one("transformer.out"))


def watch_rest(recorder: Recorder, pipeline: FluxPipeline, inner: bool) -> None:
    """Text encoders and decoder, each of which is called once."""

    def clip(r, args, kwargs, output):
        r.put("tokens.clip", args[0].to(torch.int32))
        r.put("clip.last_hidden_state", output.last_hidden_state)
        r.put("clip.pooled", output.pooler_output)

    def t5(r, args, kwargs, output):
        r.put("tokens.t5", args[0].to(torch.int32))
        r.put("t5.last_hidden_state", output[0])

    recorder.watch(pipeline.text_encoder, clip)
    recorder.watch(pipeline.text_encoder_2, t5)
    decoder = pipeline.vae.decoder

    def decoded(r, args, kwargs, output):
        r.put("vae.in", args[0])
        r.put("vae.out", output)

    recorder.watch(decoder, decoded)
    if inner:
        for i, block in enumerate(pipeline.text_encoder_2.encoder.block):
            recorder.watch(block, lambda r, a, k, o, i=i: r.put(f"t5.block.{i}", o[0] if isinstance(o, tuple) else o))
        for i, layer in enumerate(pipeline.text_encoder.encoder.layers):
            recorder.watch(layer, lambda r, a, k, o, i=i: r.put(f"clip.layer.{i}", o[0] if isinstance(o, tuple) else o))
        recorder.watch(decoder.conv_in, lambda r, a, k, o: r.put("vae.conv_in", o))
        recorder.watch(decoder.mid_block, lambda r, a, k, o: r.put("vae.mid_block", o))
        for i, block in enumerate(decoder.up_blocks[:2]):  # the later ones are large and of the same kind
            recorder.watch(block, lambda r, a, k, o, i=i: r.put(f"vae.up_block.{i}", o))


@torch.no_grad()
def run(folder: Path, case: dict, inner: bool, probe_step: int) -> dict:
    """The float32 reference: the whole pipeline from prompt to pixels."""
    pipeline = load(folder, torch.float32)
    recorder = Recorder()
    watch_rest(recorder, pipeline, inner)
    watch_transformer(recorder, pipeline.transformer, probe_step, inner)
    packed = []

    def step_end(_, i, t, kwargs):
        packed.append(kwargs["latents"][0].clone())
        recorder.armed = True
        return {}

    prepared = {}
    prepare = pipeline.prepare_latents

    def prepare_latents(*args, **kwargs):
        latents, ids = prepare(*args, **kwargs)
        prepared["packed"] = latents.clone()
        return latents, ids

    pipeline.prepare_latents = prepare_latents
    images = pipeline(
        prompt=case["prompt"], width=case["width"], height=case["height"], num_inference_steps=case["steps"],
        guidance_scale=case["guidance"], max_sequence_length=case["max_sequence_length"],
        generator=torch.Generator("cpu").manual_seed(case["seed"]), output_type="pil", callback_on_step_end=step_end).images
    recorder.close()

    kept = recorder.kept
    kept["schedule.sigmas"] = pipeline.scheduler.sigmas.clone()
    kept["schedule.timesteps"] = pipeline.scheduler.timesteps.clone()
    kept["latents.packed.0"] = prepared["packed"][0]
    for i, latents in enumerate(packed):
        kept[f"latents.packed.{i + 1}"] = latents
    kept["image"] = torch.from_numpy(np.asarray(images[0].convert("RGB")).copy())

    # The noise is torch.randn of the unpacked shape, and packing only reorders it.
    shape = (1, 16, case["height"] // 8, case["width"] // 8)
    noise = torch.randn(shape, generator=torch.Generator("cpu").manual_seed(case["seed"]))
    assert torch.equal(FluxPipeline._pack_latents(noise, *shape)[0], kept["latents.packed.0"])
    kept["latents.noise"] = noise[0]
    # The picture is the clamped decoder output, rounded half to even.
    pixels = ((kept["vae.out"] * 0.5 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0)
    assert torch.equal(pixels, kept["image"])
    return {name: tensor.contiguous() for name, tensor in kept.items()}


@torch.no_grad()
def components(folder: Path, dtype: torch.dtype, kept: dict) -> dict:
    """Each component in `dtype`, on the reference's inputs."""
    pipeline = load(folder, dtype)
    with true_float64() if dtype == torch.float64 else contextlib.nullcontext():
        encoder_states = kept["t5.last_hidden_state"].to(dtype)[None]
        out = {
            "t5": pipeline.text_encoder_2(kept["tokens.t5"][None].long())[0],
            "clip": pipeline.text_encoder(kept["tokens.clip"][None].long()).pooler_output,
            "vae": pipeline.vae.decode(kept["vae.in"].to(dtype)[None]).sample,
        }
        rows = kept["vae.in"].shape[1] // 2, kept["vae.in"].shape[2] // 2
        out["transformer"] = pipeline.transformer(
            hidden_states=kept["transformer.in.hidden_states"].to(dtype)[None],
            timestep=kept["transformer.in.sigma"].to(dtype),
            guidance=kept["transformer.in.guidance"] if "transformer.in.guidance" in kept else None,
            pooled_projections=kept["clip.pooled"].to(dtype)[None], encoder_hidden_states=encoder_states,
            txt_ids=torch.zeros(encoder_states.shape[1], 3, dtype=dtype),
            img_ids=FluxPipeline._prepare_latent_image_ids(1, *rows, "cpu", dtype)).sample
    return {name: tensor[0].double() for name, tensor in out.items()}


@torch.no_grad()
def bf16_picture(folder: Path, case: dict, kept: dict) -> dict:
    """The whole pipeline in bfloat16 from the reference's noise: how far the field's usual run is from the reference."""
    pipeline = load(folder, torch.bfloat16)
    last = {}

    def step_end(_, i, t, kwargs):
        last["latents"] = kwargs["latents"][0].double()
        return {}

    image = pipeline(
        prompt=case["prompt"], width=case["width"], height=case["height"], num_inference_steps=case["steps"],
        guidance_scale=case["guidance"], max_sequence_length=case["max_sequence_length"],
        latents=kept["latents.packed.0"].to(torch.bfloat16)[None], callback_on_step_end=step_end).images[0]
    difference = np.abs(np.asarray(image).astype(int) - kept["image"].numpy().astype(int))
    final = kept[f"latents.packed.{case['steps']}"].double()
    return {
        "final_latents": relative_l2(last["latents"], final),
        "image_mean_abs_255": float(difference.mean()),
        "image_max_abs_255": int(difference.max()),
    }


def relative_l2(value: torch.Tensor, reference: torch.Tensor) -> float:
    return float(f"{((value - reference).norm() / reference.norm()).item():.3e}")


def errors(folder: Path, case: dict, kept: dict) -> dict:
    exact = components(folder, torch.float64, kept)
    names = {"t5": "t5.last_hidden_state", "clip": "clip.pooled", "vae": "vae.out", "transformer": "transformer.out"}
    bf16 = components(folder, torch.bfloat16, kept)
    return {
        "float32_vs_float64": {name: relative_l2(kept[key].double(), exact[name]) for name, key in names.items()},
        "bfloat16_vs_float64": {name: relative_l2(bf16[name], exact[name]) for name in names},
        "bfloat16_pipeline_vs_float32": bf16_picture(folder, case, kept),
    }


def write_case(path: Path, case: dict) -> None:
    path.write_text(json.dumps(case, indent=2, ensure_ascii=False) + "\n", "utf8")
