#!/usr/bin/env python3
"""Writes tests/golden: small models with reference tensors, and tables of noise, sigmas and token ids. See README.md.

    make.py [NAME ...]      NAME: dev-tiny, schnell-tiny, odd-tiny, demo, noise, sigmas, tokens (default: all)
"""
import argparse
import logging
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
logging.disable(logging.WARNING)

import diffusers
import torch
import transformers
from safetensors.torch import load_file, save_file

import bfl
import capture
import tables
import tiny
import tokens

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "demo/model"
DEMO_CASES = {
    "ice-cream": (dict(prompt="ice cream, 3d rendered emoji", seed=0, width=128, height=128, steps=8, guidance=0.0), True),
    "red-apple": (dict(prompt="red apple, flat noto emoji", seed=7, width=96, height=128, steps=5, guidance=0.0), False),
}


def folder_tensors(folder: Path) -> dict:
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def make_tiny(model: tiny.Tiny, out: Path) -> None:
    tiny.build(model, DEMO, out)
    shape = model.transformer
    if model.name == "dev-tiny":
        folder = folder_tensors(out / "transformer")
        single = bfl.to_bfl(folder, shape["num_layers"], shape["num_single_layers"])
        bfl.check(single, folder, shape["num_attention_heads"] * shape["attention_head_dim"])
        save_file(single, out / "flux1-dev-tiny.safetensors")  # no metadata, as in the published file
    case = model.case | dict(max_sequence_length=model.t5_length)
    kept = capture.run(out, case, inner=True, probe_step=1)
    finish(out, "reference.safetensors", "case.json", case | dict(probe_step=1), kept)


def finish(out: Path, tensors: str, description: str, case: dict, kept: dict, folder: Path | None = None, drop: tuple = ()) -> None:
    for name, tensor in kept.items():
        assert tensor.dtype in (torch.int32, torch.uint8) or bool(tensor.isfinite().all()), name
    save_file({name: tensor for name, tensor in kept.items() if not name.startswith(drop)}, out / tensors)
    figures = capture.errors(folder or out, case, kept)
    capture.write_case(out / description, case | dict(relative_l2_error=figures))
    sizes = {n: f"{t.double().std():.2f}" for n, t in kept.items() if n in (
        "t5.last_hidden_state", "clip.pooled", "transformer.temb", "transformer.out", "vae.in", "vae.out", "image")}
    print(out.name, description, "standard deviations", sizes)
    print("  ", figures)


def make_demo(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name, (case, whole) in DEMO_CASES.items():
        case = case | dict(max_sequence_length=32)
        kept = capture.run(DEMO, case, inner=False, probe_step=3)
        drop = () if whole else ("transformer.temb", "transformer.time_proj", "clip.last", "vae.out", "latents.noise")
        finish(out, f"{name}.safetensors", f"{name}.json", case | dict(probe_step=3), kept, folder=DEMO, drop=drop)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--out", type=Path, default=ROOT / "tests/golden")
    options = parser.parse_args()
    torch.set_num_threads(1)  # sums in one order
    diffusers.utils.logging.set_verbosity_error()
    transformers.logging.set_verbosity_error()
    diffusers.utils.logging.disable_progress_bar()
    transformers.logging.disable_progress_bar()
    makers = {name: lambda model=model: make_tiny(model, options.out / model.name) for name, model in tiny.MODELS.items()}
    makers["demo"] = lambda: make_demo(options.out / "demo")
    makers["noise"] = lambda: tables.write_noise(options.out / "noise.safetensors")
    makers["sigmas"] = lambda: tables.write_sigmas(options.out / "sigmas.json")
    makers["tokens"] = lambda: tokens.write(options.out / "tokens.json", {"demo": DEMO, "small": options.out / "odd-tiny"}, options.out / "dev-tiny")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or makers:
        if name not in makers:
            parser.error(f"{name}: expected one of {', '.join(makers)}")
        makers[name]()


if __name__ == "__main__":
    main()
