#!/usr/bin/env python3
"""Draws 200 pictures at three lines in turn in one process and fails if anything grows.

    python3 bench/soak.py [--bin target/release/plimsoll] [--model PATH] [--lines max,600MiB,min] [--pictures 201] ...

Everything after `--` goes to `plimsoll bench`. Held to account:

- device bytes of the process after each picture equal those after the first picture at the same line (from the third
  picture on; only on a card, where the driver's figure for the process is there);
- anonymous RSS does not grow: the median slope over the second half of the pictures at each line is at most 1 KiB a
  picture, and the last is at most 8 MiB above the one after the third round;
- the bits of the picture and the latent are one and the same.

Prints one line a finding and exits with 1 if any fails.
"""

import argparse
import json
import statistics
import subprocess
import sys

KIB = 1024
MIB = 1024 * KIB
SLOPE_MOST = 1 * KIB
GROWTH_MOST = 8 * MIB


def slope(values):
    """Median of the slopes between all pairs of points: a spike here and there does not move it."""
    pairs = [
        (values[later] - values[earlier]) / (later - earlier)
        for earlier in range(len(values))
        for later in range(earlier + 1, len(values))
    ]
    return statistics.median(pairs) if pairs else 0.0


def run(options):
    """Yields (line, picture) in the order in which pictures were made."""
    lines = options.lines.split(",")
    rounds = -(-options.pictures // len(lines))
    command = [
        options.bin, "bench", "--model", options.model, "--lines", options.lines, "--rounds", str(rounds),
        "--pictures", "1", "--width", str(options.size), "--height", str(options.size),
        "--steps", str(options.steps), *options.rest,
    ]
    print(" ".join(command))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        for count, text in enumerate(child.stdout):
            case = json.loads(text)
            for picture in case["pictures"]:
                yield lines[count % len(lines)], picture
    if child.returncode != 0:
        sys.exit(f"FAIL the program ended with {child.returncode}")


def check(made, lines):
    """Prints what was found; true if nothing grew."""
    good = True

    def finding(holds, text):
        nonlocal good
        good = good and holds
        print(f"{'ok  ' if holds else 'FAIL'} {text}")

    finding(len(made) >= 3 * len(lines), f"{len(made)} pictures")
    for what in ("latent_sha256", "image_sha256"):
        bits = {picture[what] for _, picture in made}
        finding(len(bits) == 1, f"{what}: {len(bits)} different")
    for line in lines:
        at = [(index, picture) for index, (name, picture) in enumerate(made) if name == line]
        device = [(index, picture["vram_process_bytes"]) for index, picture in at]
        if any(bytes_ is None for _, bytes_ in device):
            print(f"-    {line}: no figure of the device's memory for this process")
        else:
            first = device[0][1]
            other = [(index, bytes_) for index, bytes_ in device if index >= 2 and bytes_ != first]
            finding(not other, f"{line}: {first} device bytes, {len(other)} pictures with others {other[:3]}")
        anonymous = [picture["rss"]["anonymous"] for _, picture in at]
        if any(bytes_ is None for bytes_ in anonymous):
            print(f"-    {line}: the system does not say what is resident")
            continue
        half = anonymous[len(anonymous) // 2:]
        per_picture = slope(half) / len(lines)
        finding(
            per_picture <= SLOPE_MOST,
            f"{line}: anonymous RSS {half[-1] / MIB:.2f} MiB, slope {per_picture:+.1f} bytes a picture",
        )
        settled = anonymous[min(2, len(anonymous) - 1)]
        growth = anonymous[-1] - settled
        finding(growth <= GROWTH_MOST, f"{line}: {growth / MIB:+.2f} MiB since the third round")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="target/release/plimsoll")
    parser.add_argument("--model", default="demo/model")
    parser.add_argument("--lines", default="max,600MiB,min")
    parser.add_argument("--pictures", type=int, default=201)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("rest", nargs="*", help="more options of `plimsoll bench`, after --")
    options = parser.parse_args()
    sys.exit(0 if check(list(run(options)), options.lines.split(",")) else 1)


if __name__ == "__main__":
    main()
