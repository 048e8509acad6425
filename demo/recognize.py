#!/usr/bin/env python3
"""Does the demo model draw what it is asked for? The share of pictures whose nearest true picture is the right one.

    recognize.py emoji128.zip --bin target/release/plimsoll [-- MORE OPTIONS OF generate]
    recognize.py emoji128.zip --pictures FOLDER                 FOLDER/NNNNN.png, drawn elsewhere (see --list)
    recognize.py emoji128.zip --diffusers                       draws with diffusers (tools/golden/requirements.txt)
    recognize.py emoji128.zip --list                            prints what to draw: number, seed, caption
    recognize.py emoji128.zip --write-test                      writes recognition16.{json,safetensors} beside this file

256 training captions, evenly spaced over the archive's; the caption with place k of them is drawn with seed k.
A picture is made 32x32 by the mean of each 4x4 square, rounded half up: (sum of 16 + 8) / 16 per channel. Its nearest of the
6,059 true pictures is the one with the smallest sum of squared differences. 46 pictures are the same pixels as another one
(`person facepalming` and `woman facepalming` in the old Noto style, say): of equally near ones the right one counts.
Run by hand, on the CPU; it needs numpy and Pillow, and safetensors for --write-test.
"""
import argparse
import concurrent.futures
import io
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent
COUNT = 256
TEST_COUNT, TEST_RIVALS = 16, 15


def small(picture: np.ndarray) -> np.ndarray:
    """[128, 128, 3] uint8 -> [32, 32, 3] uint8."""
    assert picture.shape == (128, 128, 3) and picture.dtype == np.uint8, (picture.shape, picture.dtype)
    sums = picture.astype(np.uint32).reshape(32, 4, 32, 4, 3).sum(axis=(1, 3))
    return ((sums + 8) // 16).astype(np.uint8)


def read_archive(path: Path) -> tuple[list[dict], np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        records = [json.loads(line) for line in archive.read("captions.jsonl").decode("utf8").splitlines()]
        raw = [archive.read(record["file"]) for record in records]

    def decode(data: bytes) -> np.ndarray:
        return small(np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return records, np.stack(list(pool.map(decode, raw)))


def select(records: list[dict]) -> list[int]:
    train = [i for i, record in enumerate(records) if record["split"] == "train"]
    return [train[k * len(train) // COUNT] for k in range(COUNT)]


def distances(picture: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    difference = gallery.reshape(len(gallery), -1).astype(np.int32) - picture.reshape(-1).astype(np.int32)
    return np.einsum("ij,ij->i", difference, difference, dtype=np.int64)


def from_binary(options, captions: list[str]):
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "picture.png"
        for seed, caption in enumerate(captions):
            command = [options.bin, "generate", caption, "--seed", str(seed), "--steps", str(options.steps), "--width", "128",
                       "--height", "128", "-o", str(target), "--json", *options.bin_options]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            yield np.asarray(Image.open(target).convert("RGB"))
            target.unlink()


def from_diffusers(options, captions: list[str]):
    import torch
    from diffusers import FluxPipeline
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    pipeline = FluxPipeline.from_pretrained(HERE / "model", dtype=getattr(torch, options.dtype), local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    for seed, caption in enumerate(captions):
        # Noise in float32 whatever the dtype, as Plimsoll draws it.
        noise = torch.randn((1, 16, 16, 16), generator=torch.Generator("cpu").manual_seed(seed))
        yield np.asarray(pipeline(
            prompt=caption, width=128, height=128, num_inference_steps=options.steps, guidance_scale=0.0, max_sequence_length=32,
            latents=FluxPipeline._pack_latents(noise, 1, 16, 16, 16).to(pipeline.dtype)).images[0].convert("RGB"))


def from_folder(options, numbers: list[int]):
    for number in numbers:
        yield np.asarray(Image.open(options.pictures / f"{number:05}.png").convert("RGB"))


def measure(options, records: list[dict], gallery: np.ndarray, numbers: list[int]) -> None:
    captions = [records[number]["caption"] for number in numbers]
    if options.pictures:
        pictures = from_folder(options, numbers)
    else:
        pictures = (from_binary if options.bin else from_diffusers)(options, captions)
    right, name, margins = 0, 0, []
    for seed, (number, picture) in enumerate(zip(numbers, pictures)):
        far = distances(small(picture), gallery)
        nearest = number if far[number] == far.min() else int(far.argmin())
        others = far[far != far[number]].min()
        margins.append(float(np.sqrt(others / max(far[number], 1))))
        right += nearest == number
        name += records[nearest]["name"] == records[number]["name"]
        if nearest != number:
            print(f"  {number:05} seed {seed} {captions[seed]!r} -> {records[nearest]['caption']!r}, {margins[-1]:.3f} x as far as the right one")
        elif seed % 32 == 31:
            print(f"  {seed + 1} of {len(numbers)}, {right} right", file=sys.stderr)
    margins.sort()
    print(f"right picture {right} of {len(numbers)} = {right / len(numbers):.1%}; right name {name / len(numbers):.1%}; "
          f"nearest wrong / right distance: least {margins[0]:.2f}, median {margins[len(margins) // 2]:.2f}")


def write_test(records: list[dict], gallery: np.ndarray, numbers: list[int]) -> None:
    """Sixteen of the captions, with the true picture and its nearest rivals: small enough to commit."""
    from safetensors.numpy import save_file

    chosen = [(seed, numbers[seed]) for seed in range(COUNT // TEST_COUNT // 2, COUNT, COUNT // TEST_COUNT)]
    kept: dict[int, None] = {}
    for _, number in chosen:
        for near in np.argsort(distances(gallery[number], gallery), kind="stable")[: TEST_RIVALS + 1]:
            kept[int(near)] = None
    rows = sorted(kept)
    save_file({"pictures": gallery[rows]}, HERE / "recognition16.safetensors")
    cases = [dict(caption=records[n]["caption"], seed=seed, row=rows.index(n)) for seed, n in chosen]
    pictures = [dict(caption=records[n]["caption"], file=records[n]["file"]) for n in rows]
    lines = lambda items: "[\n" + ",\n".join("  " + json.dumps(item, ensure_ascii=False) for item in items) + "\n ]"
    text = f'{{\n "width": 128, "height": 128, "steps": 8, "guidance": 0.0,\n "cases": {lines(cases)},\n "pictures": {lines(pictures)}\n}}\n'
    json.loads(text)
    (HERE / "recognition16.json").write_text(text, "utf8")
    print(f"{len(cases)} cases, {len(rows)} pictures")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path, help="emoji128.zip")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--bin", help="the plimsoll binary")
    source.add_argument("--pictures", type=Path, help="folder of NNNNN.png")
    source.add_argument("--diffusers", action="store_true")
    source.add_argument("--list", action="store_true")
    source.add_argument("--write-test", action="store_true")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of --diffusers")
    arguments = sys.argv[1:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:cut])
    options.bin_options = arguments[cut + 1:]
    records, gallery = read_archive(options.archive)
    numbers = select(records)
    if options.list:
        for seed, number in enumerate(numbers):
            print(f"{number:05}\t{seed}\t{records[number]['caption']}")
    elif options.write_test:
        write_test(records, gallery, numbers)
    else:
        measure(options, records, gallery, numbers)


if __name__ == "__main__":
    main()
