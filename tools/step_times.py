#!/usr/bin/env python3
"""Step times of the demo model on the CPU: the smallest line against all resident, and each against its prediction.

    python3 tools/step_times.py --bin target/release/plimsoll [--rounds 9] [--steps 24]

Each round runs both lines, in turn first, with `--calibrate`: the machine is timed on the model's ops before the plan is
made, so that `predicted.seconds_per_step` is from measured rates. The same plan then runs on the simulated device, whose clock
must agree with the prediction. Prints every round, the medians, the ratio min / max and measured / predicted.
The machine should be idle; beside other work the ratios get wider, not the medians' meaning.
"""
import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

PROMPT = "ice cream, 3d rendered emoji"


def run(binary: str, model: list[str], line: str, device: str, steps: int, more: list[str], folder: str) -> dict:
    command = [
        binary, "generate", PROMPT, *model, "--vram", line, "--device", device, "--steps", str(steps), "--calibrate",
        "--json", "-o", str(Path(folder) / "picture.png"), *more]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {side: report[side]["seconds_per_step"] for side in ("predicted", "measured")} | {
        "copied": report["measured"]["copied_bytes_per_step"], "line": report["vram_line_bytes"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, help="the plimsoll binary (release build)")
    parser.add_argument("--model", help="pipeline folder, where the binary carries no demo model")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("bin_options", nargs="*", metavar="-- OPTION", help="more options for the binary, after --")
    options = parser.parse_args()
    model = ["--model", options.model] if options.model else []

    kept: dict[str, list[dict]] = {"min": [], "max": []}
    with tempfile.TemporaryDirectory() as folder:
        for index in range(options.rounds):
            for line in sorted(kept, reverse=index % 2 == 1):
                kept[line].append(run(options.bin, model, line, "cpu", options.steps, options.bin_options, folder))
            print(f"round {index + 1}: " + ", ".join(
                f"{line} {kept[line][-1]['measured'] * 1e3:.2f} ms (predicted {kept[line][-1]['predicted'] * 1e3:.2f})"
                for line in kept))
        for line in kept:
            simulated = run(options.bin, model, line, "sim", options.steps, options.bin_options, folder)
            print(f"simulated, {line}: clock / prediction = {simulated['measured'] / simulated['predicted']:.6f}")

    def median(line: str, key: str) -> float:
        return statistics.median(one[key] for one in kept[line])

    for line in kept:
        ratio = statistics.median(one["measured"] / one["predicted"] for one in kept[line])
        print(
            f"{line}: line {kept[line][0]['line'] / 2**20:.2f} MiB, {kept[line][0]['copied'] / 2**20:.2f} MiB a step, "
            f"median {median(line, 'measured') * 1e3:.2f} ms a step, measured / predicted = {ratio:.3f}")
    print(f"min / max = {median('min', 'measured') / median('max', 'measured'):.3f}")


if __name__ == "__main__":
    main()
