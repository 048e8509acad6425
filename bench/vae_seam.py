#!/usr/bin/env python3
"""Whether tiles of a decode show: the difference of two pictures, by steps between neighbours at lines and elsewhere.

    bench/vae_seam.py WHOLE.png TILED.png

For every row and column line of pixels: the mean step of the difference (tiled less whole) across it, in 8-bit levels.
A seam is a line whose step stands out of all others'. Needs numpy and pillow.
"""

import sys

import numpy as np
from PIL import Image


def main(whole, tiled):
    a, b = (np.asarray(Image.open(path).convert("RGB"), dtype=np.float64) for path in (whole, tiled))
    if a.shape != b.shape:
        sys.exit(f"sizes differ: {a.shape} and {b.shape}")
    difference = b - a
    print(f"difference: largest {abs(difference).max():.0f}, mean {abs(difference).mean():.3f} of 255")
    for axis, name in ((0, "rows"), (1, "columns")):
        steps = abs(np.diff(difference, axis=axis)).mean(axis=(1 - axis, 2))
        at = int(steps.argmax())
        print(f"{name}: largest mean step {steps[at]:.3f} before {at + 1}, median {np.median(steps):.3f}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
