#!/usr/bin/env python3
"""How far each component's bf16 is from float32: plimsoll's error beside diffusers' own.

    plimsoll generate PROMPT --model DIR --steps 1 --width 512 --height 512 --save-tensors OURS.safetensors
    python3 bench/parity_components.py --model DIR --tensors OURS.safetensors

    plimsoll pack --model DIR -o DIR-fp8 --dtype transformer=fp8
    plimsoll generate PROMPT --model DIR-fp8 --steps 1 --width 512 --height 512 --save-tensors FP8.safetensors
    python3 bench/parity_components.py --model DIR --tensors FP8.safetensors --fp8 DIR-fp8

Each component of DIR runs in diffusers (transformers for T5 and CLIP) on the very inputs that it had in our run: T5 and CLIP on our
token ids, the transformer on our context, pooled state and noise, the VAE on our last latent. Once in bf16, as a diffusers pipeline
loads it, and once in float32 (TF32 off) over the same weights, which is the reference. An error is the L2 norm of the difference over
that of the reference, in float64.

With --fp8 only the transformer runs. Its reference has the weights of DIR, so that the error of storing them in 8 bits counts; beside
our error stands that of the same scheme in torch: the bf16 transformer whose packed matrices are read from the packed folder, with each
token scaled by its greatest magnitude over 448, rounded to e4m3, and multiplied by torch._scaled_mm (row-wise scales, no fast
accumulation; in float32 where the device has no such product).

--tile EDGE says that our run decoded in tiles (--vae-tile EDGE) and adds diffusers' own tiling in float32; the reference is the whole
decode. Ends with 1 where a ratio is above 1.1, or where something of ours is missing or not finite.
"""
import argparse
import gc
import glob
import os
import sys
import time

RATIO_MAX = 1.1
FP8_MAX = 448.0


def relative(found, reference) -> float:
    """Relative L2 error in float64; infinite where a value is not finite."""
    found, reference = found.double().flatten(), reference.double().flatten()
    if found.numel() != reference.numel():
        raise SystemExit(f"{found.numel()} values of ours, {reference.numel()} of the reference: another model or size?")
    if not bool(found.isfinite().all()):
        return float("inf")
    return float((found - reference).norm() / reference.norm())


def is_stored_as(folder: str, dtype: str) -> bool:
    """Whether every floating-point tensor of a component is stored in `dtype`."""
    import json
    import struct

    for path in glob.glob(os.path.join(folder, "*.safetensors")):
        with open(path, "rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        header.pop("__metadata__", None)
        if any(entry["dtype"] != dtype for entry in header.values() if entry["dtype"][0] in "FB"):
            return False
    return True


class Comparison:
    def __init__(self, args):
        import torch
        from safetensors import safe_open

        self.torch, self.args, self.rows = torch, args, []
        self.device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
        with safe_open(args.tensors, "pt") as file:
            self.ours = {name: file.get_tensor(name) for name in file.keys()}

    def tensor(self, name: str):
        if name not in self.ours:
            raise SystemExit(f"{self.args.tensors} has no {name}: write it with `plimsoll generate --save-tensors`")
        return self.ours[name].to(self.device)

    def both(self, kind, subfolder: str, call, **names):
        """What `call(model, dtype)` gives in bf16 and in float32; the model is gone afterwards."""
        torch = self.torch
        began = time.time()

        def load(dtype):
            return kind.from_pretrained(self.args.model, subfolder=subfolder, local_files_only=True,
                                        **{names.get("dtype", "torch_dtype"): dtype}).to(self.device).eval()

        with torch.no_grad():
            model = load(torch.bfloat16)
            loaded = time.time() - began
            low = call(model, torch.bfloat16)
            if is_stored_as(os.path.join(self.args.model, subfolder), "BF16"):
                model = model.to(torch.float32)
            else:
                del model
                model = load(torch.float32)
            reference = call(model, torch.float32)
            extra = names["extra"](model) if "extra" in names else None
        del model
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
        print(f"{subfolder}: loaded in {loaded:.1f} s, {time.time() - began:.1f} s in all", flush=True)
        return low, reference, extra

    def row(self, name: str, ours, theirs, reference) -> None:
        mine, other = relative(ours, reference), relative(theirs, reference)
        self.rows.append((name, mine, other, mine / other if other else float("inf")))

    def t5(self) -> None:
        from transformers import T5EncoderModel

        ids = self.tensor("t5.ids").long().view(1, -1)
        low, reference, _ = self.both(T5EncoderModel, "text_encoder_2", lambda model, _: model(ids)[0], dtype="dtype")
        self.row("T5", self.tensor("t5.context"), low, reference)

    def clip(self) -> None:
        from transformers import CLIPTextModel

        ids = self.tensor("clip.ids").long().view(1, -1)
        low, reference, _ = self.both(CLIPTextModel, "text_encoder", lambda model, _: model(ids).pooler_output, dtype="dtype")
        self.row("CLIP", self.tensor("clip.pooled"), low, reference)

    def velocity(self):
        """What our transformer gave, on the noise: the run had one step."""
        steps = self.tensor("timestep").numel()
        if steps != 1:
            raise SystemExit(f"{self.args.tensors} is of {steps} steps: the transformer is compared at --steps 1")
        return self.tensor("velocity")

    def transform(self, model, dtype):
        """One call of diffusers' transformer on our inputs."""
        torch = self.torch
        height, width, _ = self.ours["image"].shape
        rows = self.ours["noise"].shape[0]
        # Tokens are square, so their grid has the picture's proportions.
        down = round((height * width / rows) ** 0.5)
        from diffusers import FluxPipeline

        grid = FluxPipeline._prepare_latent_image_ids(1, height // down, width // down, self.device, dtype)
        guidance = None
        if "guidance" in self.ours and model.config.guidance_embeds:
            guidance = self.tensor("guidance").float().view(1)
        return model(
            hidden_states=self.tensor("noise").to(dtype)[None],
            encoder_hidden_states=self.tensor("t5.context").to(dtype)[None],
            pooled_projections=self.tensor("clip.pooled").to(dtype).view(1, -1),
            timestep=self.tensor("timestep").view(1).to(dtype),
            guidance=guidance,
            img_ids=grid,
            txt_ids=torch.zeros(self.ours["t5.context"].shape[0], 3, device=self.device, dtype=dtype),
            return_dict=False,
        )[0]

    def transformer(self) -> None:
        from diffusers import FluxTransformer2DModel

        low, reference, _ = self.both(FluxTransformer2DModel, "transformer", self.transform)
        self.row("transformer", self.velocity(), low, reference)

    def transformer_fp8(self) -> None:
        from diffusers import FluxTransformer2DModel

        counts = []

        def call(model, dtype):
            if dtype == self.torch.float32:
                return self.transform(model, dtype)
            plain = self.transform(model, dtype)
            kept, count = narrow(self.torch, model, self.args.fp8, self.device)
            counts.append(count)
            narrowed = self.transform(model, dtype)
            for parent, name, layer in kept:
                setattr(parent, name, layer)
            return plain, narrowed

        (plain, narrowed), reference, _ = self.both(FluxTransformer2DModel, "transformer", call)
        print(f"{counts[0]} matrices in 8 bits; diffusers in bf16 is {relative(plain, reference):.4e} off", flush=True)
        self.row("transformer fp8", self.velocity(), narrowed, reference)

    def vae(self) -> None:
        from diffusers import AutoencoderKL, FluxPipeline

        height, width, _ = self.ours["image"].shape
        latent = self.tensor("latent").float()[None]

        def pixels(model):
            down = 2 ** (len(model.config.block_out_channels) - 1)
            grid = FluxPipeline._unpack_latents(latent, height, width, down)
            return grid / model.config.scaling_factor + (model.config.shift_factor or 0.0)

        def call(model, dtype):
            return model.decode(pixels(model).to(dtype), return_dict=False)[0]

        def tiled(model):
            edge = self.args.tile
            down = 2 ** (len(model.config.block_out_channels) - 1)
            model.tile_sample_min_size, model.tile_latent_min_size = edge, edge // down
            model.enable_tiling()
            return call(model, self.torch.float32)

        extra = {"extra": tiled} if self.args.tile else {}
        low, reference, extra = self.both(AutoencoderKL, "vae", call, **extra)
        ours = self.tensor("image").permute(2, 0, 1)
        if self.args.tile:
            self.row(f"VAE in tiles of {self.args.tile}", ours, extra, reference)
        else:
            self.row("VAE", ours, low, reference)

    def end(self) -> int:
        theirs = "torch, same scheme" if self.args.fp8 else "diffusers"
        print(f"{'component':24} {'ours':>11} {theirs:>19} {'ratio':>7}")
        worst = 0.0
        for name, mine, other, ratio in self.rows:
            # A tiling is another picture, not another rounding: it is shown, not judged.
            judged = not name.startswith("VAE in tiles")
            worst = max(worst, ratio) if judged else worst
            word = ("ok" if ratio <= RATIO_MAX else f"above {RATIO_MAX}") if judged else ""
            print(f"{name:24} {mine:11.4e} {other:19.4e} {ratio:7.3f} {word}".rstrip(), flush=True)
        return 0 if worst <= RATIO_MAX else 1


def narrow(torch, model, folder: str, device: str):
    """Puts products in 8 bits in the place of the layers that the packed folder stores so; gives what they replaced."""
    from safetensors import safe_open

    class NarrowLinear(torch.nn.Module):
        def __init__(self, weight, scale, bias):
            super().__init__()
            self.stored, self.scale, self.add = weight, scale.float().view(1, -1), bias

        def forward(self, x):
            rows = x.reshape(-1, x.shape[-1])
            greatest = rows.abs().amax(dim=1, keepdim=True).float()
            scale = torch.where(greatest > 0, greatest / FP8_MAX, torch.ones_like(greatest))
            narrow = (rows.float() / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
            if rows.is_cuda:
                out = torch._scaled_mm(narrow, self.stored.t(), scale_a=scale, scale_b=self.scale, bias=self.add,
                                       out_dtype=torch.bfloat16, use_fast_accum=False)
            else:
                out = (narrow.float() @ self.stored.float().t()) * scale * self.scale
                out = (out if self.add is None else out + self.add.float()).to(torch.bfloat16)
            return out.view(*x.shape[:-1], -1)

    kept = []
    for path in sorted(glob.glob(os.path.join(folder, "transformer", "*.safetensors"))):
        with safe_open(path, "pt", device=device) as file:
            names = set(file.keys())
            for name in sorted(names):
                if not name.endswith(".weight") or f"{name}_scale" not in names:
                    continue
                *above, last = name.removesuffix(".weight").split(".")
                parent = model.get_submodule(".".join(above))
                layer = getattr(parent, last)
                stored = file.get_tensor(name)
                if tuple(stored.shape) != tuple(layer.weight.shape) or stored.dtype != torch.float8_e4m3fn:
                    raise SystemExit(f"{name} is {stored.dtype} {tuple(stored.shape)}, expected e4m3 {tuple(layer.weight.shape)}")
                kept.append((parent, last, layer))
                setattr(parent, last, NarrowLinear(stored, file.get_tensor(f"{name}_scale"), layer.bias))
    if not kept:
        raise SystemExit(f"{folder} has no matrix in 8 bits: write it with `plimsoll pack --dtype transformer=fp8`")
    return kept, len(kept)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="pipeline folder in the diffusers layout")
    parser.add_argument("--tensors", required=True, help="what `plimsoll generate --save-tensors` wrote")
    parser.add_argument("--fp8", metavar="DIR", help="the packed folder of which the tensors are")
    parser.add_argument("--tile", type=int, metavar="EDGE", help="edge of the tiles of our decode, in pixels")
    parser.add_argument("--only", nargs="+", choices=["t5", "clip", "transformer", "vae"], help="components [default: all]")
    parser.add_argument("--device", help="cuda or cpu [default: cuda where there is one]")
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    comparison = Comparison(args)
    if args.fp8:
        comparison.transformer_fp8()
        return comparison.end()
    for part in args.only or ["t5", "clip", "transformer", "vae"]:
        getattr(comparison, part)()
    return comparison.end()


if __name__ == "__main__":
    sys.exit(main())
