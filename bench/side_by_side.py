#!/usr/bin/env python3
"""One prompt on one CUDA machine: diffusers in its ways of offloading, and plimsoll at its lines, in one run.

    python3 bench/side_by_side.py --model DIR --bin target/release/plimsoll --out OUT [--peers resident,compiled,group]
        [--lines max,16GiB,8GiB,4GiB,2GiB,min] [--size 1024] [--steps 6] [--limit 120]

DIR is a diffusers folder (`plimsoll synth -o DIR` makes one). Each case is a process of its own, so that no case pays for
another's memory, under its own time limit; a second process asks NVML every 5 ms for the device bytes of the process that is
being measured and for those of the whole device. Times of a step are medians without the first.
Prints one JSON line a case (also in OUT/side_by_side.jsonl, the programs' own output beside it), and a table last.
"""
import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

PROMPT = "a lighthouse on a cliff at dawn, a ship low in the water, oil on canvas"
PEERS = ("resident", "compiled", "float8", "group", "model", "sequential")


def peer(case: str, model: str, size: int, steps: int) -> dict:
    """Runs diffusers in this process; returns what it measured."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from diffusers import FluxPipeline

    begin = time.perf_counter()
    pipe = FluxPipeline.from_pretrained(model, torch_dtype=torch.bfloat16, local_files_only=True)
    pipe.set_progress_bar_config(disable=True)
    if case in ("resident", "compiled", "float8"):
        pipe.to("cuda")
    if case == "float8":
        # torchao's dynamic float8, a scale for each row of both operands, in the matrices that ours has in 8 bits.
        from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow, quantize_

        config = Float8DynamicActivationFloat8WeightConfig(granularity=PerRow())
        for blocks in (pipe.transformer.transformer_blocks, pipe.transformer.single_transformer_blocks):
            quantize_(blocks, config, filter_fn=lambda module, name: isinstance(module, torch.nn.Linear) and "norm" not in name)
    if case in ("compiled", "float8"):
        pipe.transformer.set_attention_backend("_native_cudnn")
        pipe.transformer.compile_repeated_blocks(fullgraph=True)
    elif case == "group":
        pipe.vae.to("cuda")
        pipe.text_encoder.to("cuda")
        for part in (pipe.transformer, pipe.text_encoder_2):
            from diffusers.hooks import apply_group_offloading
            apply_group_offloading(part, onload_device=torch.device("cuda"), offload_device=torch.device("cpu"),
                                   offload_type="block_level", num_blocks_per_group=1, use_stream=True)
    elif case == "model":
        pipe.enable_model_cpu_offload()
    elif case == "sequential":
        pipe.enable_sequential_cpu_offload()
    ready = time.perf_counter()
    marks = []

    def mark(*_):
        torch.cuda.synchronize()
        marks.append(time.perf_counter())
        return {}

    picture = pipe(PROMPT, height=size, width=size, num_inference_steps=steps, guidance_scale=3.5,
                   generator=torch.Generator("cpu").manual_seed(0), callback_on_step_end=mark).images[0]
    end = time.perf_counter()
    gaps = [b - a for a, b in zip(marks, marks[1:])]
    return {"seconds_per_step": statistics.median(gaps), "gaps": [round(gap, 4) for gap in gaps], "setup_s": ready - begin,
            "picture_s": end - ready, "torch_peak_bytes": torch.cuda.max_memory_allocated(), "size": picture.size}


def sample(stop, found) -> None:
    """Asks NVML every 5 ms; the highest figures go to `found`: of a process, of the device."""
    import pynvml

    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    count = 0
    while not stop.is_set():
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
        used = [process.usedGpuMemory or 0 for process in processes]
        found[0] = max(found[0], max(used, default=0))
        found[1] = max(found[1], pynvml.nvmlDeviceGetMemoryInfo(device).used)
        count += 1
        found[2] = count
        time.sleep(0.005)


def measured(command: list[str], limit: float, log: Path) -> tuple[dict | None, dict]:
    """Runs a command under the sampler; gives its last line as JSON (None where there is none) and the sampler's figures."""
    context = multiprocessing.get_context("spawn")
    stop, found = context.Event(), context.Array("Q", 3)
    sampler = context.Process(target=sample, args=(stop, found), daemon=True)
    sampler.start()
    while found[2] == 0 and sampler.is_alive():
        time.sleep(0.01)
    before, begin = found[1], time.perf_counter()
    with log.open("w") as err:
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=err, text=True, timeout=limit)
            code, lines = done.returncode, done.stdout.strip().splitlines()
        except subprocess.TimeoutExpired as late:
            code, lines = "time limit", (late.stdout or b"").decode().splitlines()
    wall = time.perf_counter() - begin
    stop.set()
    sampler.join(2)
    figures = {"exit": code, "wall_s": round(wall, 3), "process_peak_bytes": found[0], "device_before_bytes": before,
               "device_peak_bytes": found[1], "samples": found[2]}
    try:
        return json.loads(lines[-1]), figures
    except (IndexError, ValueError):
        with log.open("a") as err:
            err.write("\n".join(lines))
        return None, figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--bin")
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--peers", default="")
    parser.add_argument("--lines", default="")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--limit", type=float, default=120)
    parser.add_argument("--option", action="append", default=[], help="further option of plimsoll, such as --option=--trace=x.json")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        print(json.dumps(peer(args.peer, args.model, args.size, args.steps)), flush=True)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    results = (args.out / "side_by_side.jsonl").open("a")
    rows = []

    def note(name: str, command: list[str]) -> None:
        answer, figures = measured(command, args.limit, args.out / f"{name}.log")
        line = {"case": name, **figures, "answer": answer}
        results.write(json.dumps(line) + "\n")
        results.flush()
        step = (answer or {}).get("seconds_per_step") or (answer or {}).get("measured", {}).get("seconds_per_step")
        predicted = (answer or {}).get("predicted", {})
        rows.append((name, figures["exit"], step, figures["process_peak_bytes"] / 2**30, figures["wall_s"],
                     predicted.get("seconds_per_step"), predicted.get("vram_process_bytes") or predicted.get("vram_peak_bytes"), (answer or {}).get("latent_sha256"),
                     (answer or {}).get("image_sha256")))
        print(json.dumps({k: v for k, v in line.items() if k != "answer"}), flush=True)

    for case in filter(None, args.peers.split(",")):
        note(f"diffusers-{case}", [sys.executable, __file__, "--peer", case, "--model", args.model, "--size", str(args.size),
                                   "--steps", str(args.steps)])
    for line in filter(None, args.lines.split(",")):
        note(f"plimsoll-{line}", [args.bin, "generate", PROMPT, "--model", args.model, "--device", "cuda", "--vram", line,
                                  "--width", str(args.size), "--height", str(args.size), "--steps", str(args.steps), "--json",
                                  "-o", str(args.out / f"plimsoll-{line}.png"), *args.option])
    print("case                     exit   s/step   predicted  process GiB (predicted)   wall s  latent    picture")
    for name, code, step, peak, wall, step_predicted, peak_predicted, latent, image in rows:
        number = lambda value, width: f"{value:{width}.4f}" if value else " " * (width - 1) + "-"
        print(f"{name:24} {code!s:>4} {number(step, 9)} {number(step_predicted, 10)}  {peak:8.3f} "
              f"{'(%.3f)' % (peak_predicted / 2**30) if peak_predicted else '':>12} {wall:14.1f}  {(latent or '')[:8]:9} {(image or '')[:8]}",
              flush=True)


if __name__ == "__main__":
    main()
