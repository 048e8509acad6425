#!/usr/bin/env python3
"""How far a bf16 picture is from the same picture in float32: diffusers' own bf16, and plimsoll's.

    python3 bench/parity.py --model DIR --pictures OURS.png [MORE.png] [--size 512] [--steps 4] [--seed 0] [--guidance 3.5]

Draws with diffusers in float32 (TF32 off) and in bf16 on the CUDA device, from the noise that plimsoll's `--noise f32` draws
(torch.randn on the CPU in float32), and compares 8-bit pictures with the float32 one: root mean square and greatest difference
of 255, PSNR. OURS.png are pictures of `plimsoll generate` with the same prompt, size, steps, guidance and seed.
"""
import argparse
import math
import os

import numpy as np

PROMPT = "a lighthouse on a cliff at dawn, a ship low in the water, oil on canvas"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--pictures", nargs="+", required=True)
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--guidance", type=float, default=3.5)
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from diffusers import FluxPipeline
    from PIL import Image

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    pipe = FluxPipeline.from_pretrained(args.model, torch_dtype=torch.bfloat16, local_files_only=True).to("cuda")
    pipe.set_progress_bar_config(disable=True)
    side = args.size // 8
    noise = torch.randn(1, 16, side, side, generator=torch.Generator("cpu").manual_seed(args.seed), dtype=torch.float32)
    packed = FluxPipeline._pack_latents(noise, 1, 16, side, side)

    def draw(dtype) -> np.ndarray:
        picture = pipe(args.prompt, height=args.size, width=args.size, num_inference_steps=args.steps, guidance_scale=args.guidance,
                       latents=packed.to("cuda", dtype)).images[0]
        return np.asarray(picture).astype(np.int32)

    rows = [("diffusers bf16", draw(torch.bfloat16))]
    for part in ("text_encoder", "text_encoder_2", "transformer", "vae"):
        getattr(pipe, part).to(torch.float32)
    reference = draw(torch.float32)
    Image.fromarray(reference.astype(np.uint8)).save(os.path.join(os.path.dirname(args.pictures[0]) or ".", "diffusers-f32.png"))
    rows += [(path, np.asarray(Image.open(path).convert("RGB")).astype(np.int32)) for path in args.pictures]
    first = None
    print(f"{'picture':40} {'rms':>8} {'greatest':>8} {'PSNR':>7} {'rms / diffusers bf16':>21}")
    for name, picture in rows:
        difference = picture - reference
        rms = math.sqrt(float((difference.astype(np.float64) ** 2).mean()))
        first = first or rms
        psnr = 20 * math.log10(255 / rms) if rms else math.inf
        print(f"{name[-40:]:40} {rms:8.4f} {abs(difference).max():8d} {psnr:7.2f} {rms / first:21.3f}", flush=True)


if __name__ == "__main__":
    main()
