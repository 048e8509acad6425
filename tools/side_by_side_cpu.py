#!/usr/bin/env python3
"""One picture of the demo model on the CPU: diffusers and plimsoll, turn about, in one run.

    tools/.venv/bin/python tools/side_by_side_cpu.py --bin target/release/plimsoll [--rounds 9] [--threads 2] [--dtype f32]

Both draw `ice cream, 3d rendered emoji` at 128x128 in 8 steps, seed 0, with the model loaded before the clock starts:
diffusers stays in this process and is warmed up by two pictures; plimsoll is started anew each round and gives
`measured.seconds_total` of its JSON, which leaves out loading (its first picture is its only one: no warm-up).
Rounds alternate, and which goes first alternates too, so that a neighbour on the machine hurts both alike.
The machine must be idle: torch's OpenMP threads wait for each other by spinning, and beside other work diffusers takes ten
and more times as long (5 s for 0.3 s, seen with a load of 5 on 2 processors), which would flatter plimsoll.
Prints every round, the medians and plimsoll / diffusers. Without --bin only diffusers is timed, with its parts.
"""
import argparse
import json
import logging
import os
import platform
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROMPT, SIZE, STEPS, SEED, T5_LENGTH = "ice cream, 3d rendered emoji", 128, 8, 0, 32


class Diffusers:
    def __init__(self, model: Path, dtype: str, threads: int):
        os.environ["HF_HUB_OFFLINE"] = "1"
        logging.disable(logging.WARNING)
        import torch
        from diffusers import FluxPipeline
        from diffusers.utils import logging as diffusers_logging

        from transformers.utils import logging as transformers_logging

        diffusers_logging.disable_progress_bar()
        transformers_logging.disable_progress_bar()
        torch.set_num_threads(threads)
        self.torch = torch
        self.pipeline = FluxPipeline.from_pretrained(
            model, dtype={"f32": torch.float32, "bf16": torch.bfloat16}[dtype], local_files_only=True)
        self.pipeline.set_progress_bar_config(disable=True)
        self.marks: dict[str, list[float]] = {}
        for name in ("text_encoder", "text_encoder_2", "transformer"):
            self.clock(name, getattr(self.pipeline, name), "forward")
        self.clock("vae", self.pipeline.vae, "decode")

    def clock(self, name: str, holder, attribute: str) -> None:
        inner = getattr(holder, attribute)

        def timed(*args, **kwargs):
            begin = time.perf_counter()
            result = inner(*args, **kwargs)
            self.marks.setdefault(name, []).append(time.perf_counter() - begin)
            return result

        setattr(holder, attribute, timed)

    def draw(self) -> dict:
        self.marks.clear()
        begin = time.perf_counter()
        self.pipeline(
            prompt=PROMPT, width=SIZE, height=SIZE, num_inference_steps=STEPS, guidance_scale=0.0, max_sequence_length=T5_LENGTH,
            generator=self.torch.Generator("cpu").manual_seed(SEED))
        total = time.perf_counter() - begin
        parts = {
            "encode": sum(self.marks["text_encoder"]) + sum(self.marks["text_encoder_2"]),
            "step": statistics.median(self.marks["transformer"]),
            "steps": sum(self.marks["transformer"]),
            "decode": sum(self.marks["vae"]),
        }
        return dict(total=total, **parts, rest=total - parts["encode"] - parts["steps"] - parts["decode"])


class Plimsoll:
    def __init__(self, binary: str, model: Path, dtype: str, threads: int, more: list[str]):
        self.folder = tempfile.TemporaryDirectory()
        # One option per fact that both sides must share.
        self.command = [
            binary, "generate", PROMPT, "--model", str(model), "--width", str(SIZE), "--height", str(SIZE), "--steps", str(STEPS),
            "--seed", str(SEED), "--dtype", dtype, "--threads", str(threads), "--json", "-o", str(Path(self.folder.name) / "picture.png"), *more]

    def draw(self) -> dict:
        done = subprocess.run(self.command, check=True, capture_output=True, text=True)
        report = json.loads(done.stdout)
        return dict(total=report["measured"]["seconds_total"], step=report["measured"]["seconds_per_step"])


def median(rounds: list[dict], key: str) -> float:
    return statistics.median(one[key] for one in rounds)


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", help="the plimsoll binary (release build)")
    parser.add_argument("--model", type=Path, default=ROOT / "demo/model")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--even-if-busy", action="store_true", help="to try the tool out; such figures are worth nothing")
    parser.add_argument("bin_options", nargs="*", metavar="-- OPTION", help="more options for the binary, after --")
    options = parser.parse_args()

    load = os.getloadavg()[0]
    print(f"{processor()}, {os.cpu_count()} processors, {options.threads} threads, {options.dtype}, load before the run {load:.2f}")
    if load > 0.5 and not options.even_if_busy:
        raise SystemExit("the machine is busy (load above 0.5): no comparison is fair here. --even-if-busy runs all the same")
    sides = {"diffusers": Diffusers(options.model, options.dtype, options.threads)}
    if options.bin:
        sides["plimsoll"] = Plimsoll(options.bin, options.model, options.dtype, options.threads, options.bin_options)
    for _ in range(2):
        for side in sides.values():
            side.draw()

    rounds: dict[str, list[dict]] = {name: [] for name in sides}
    for index in range(options.rounds):
        for name in sorted(sides, reverse=index % 2 == 1):
            rounds[name].append(sides[name].draw())
        print(f"round {index + 1}: " + ", ".join(f"{name} {rounds[name][-1]['total']:.4f} s" for name in sides))
    for name, kept in rounds.items():
        parts = ", ".join(f"{key} {median(kept, key) * 1e3:.1f} ms" for key in kept[0] if key != "total")
        print(f"{name}: median {median(kept, 'total'):.4f} s, least {min(one['total'] for one in kept):.4f} s ({parts})")
    if options.bin:
        print(f"plimsoll / diffusers = {median(rounds['plimsoll'], 'total') / median(rounds['diffusers'], 'total'):.3f}")


if __name__ == "__main__":
    main()
