#!/usr/bin/env python3
"""Checks and times the kernels of products, attention and convolution on a CUDA card, against torch in float64.

    python3 tools/check_kernels_heavy.py [check] [time]      both, unless one is named
    python3 tools/kernels.py plain sm_90 FOLDER; PLIMSOLL_CUBINS=FOLDER python3 tools/check_kernels_heavy.py check
                                                             on Hopper, the code of other cards: mma and not wgmma (that
                                                             of e4m3 is emulated there by bf16's)
    python3 tools/check_kernels_heavy.py f8                  products of 8-bit operands alone, checked and timed
    compute-sanitizer --tool racecheck python3 tools/check_kernels_heavy.py few      each kernel, few and small

Inputs are fresh normal numbers, outputs are NaN before each run, sizes are odd and operands are views of wider
tensors. What has to hold beside the figures: rows have the same bits whatever the number of rows, and nothing is
written outside of a result. The arguments are those that crates/cuda-kernels/src/lower makes.
"""

import sys

import torch
import torch.nn.functional as F

import cuda_harness as h
from cuda_harness import Kernels, assert_untouched, f32, matrix, same_bits, u32

BF16, F32 = torch.bfloat16, torch.float32
ACTIVATIONS = {
    "none": (0, lambda x: x),
    "silu": (1, F.silu),
    "gelu": (2, lambda x: F.gelu(x, approximate="tanh")),
    "quick": (3, lambda x: x * torch.sigmoid(1.702 * x)),
}
GEMM_TILES = {
    "gemm_128x128": (128, 128, 128, 3 * 256 * 128),
    "gemm_64x64": (64, 64, 128, 4 * 128 * 128),
    "gemm_16x32": (16, 32, 128, 7 * 48 * 128),
    "gemm_any": (64, 64, 256, 0),
}
CONV_TILES = {
    "conv_128x128": (128, 128, 128, 3 * 256 * 128),
    "conv_128x16": (128, 16, 128, 4 * 144 * 128),
    "conv_any": (64, 64, 256, 0),
}
gemm_module, conv_module, attention_module = (Kernels(name) for name in ("gemm", "conv", "attention"))
# Variants that Hopper has beside them.
IS_HOPPER = h.arch() == "sm_90a"
if IS_HOPPER:
    hopper_module = Kernels("hopper")
    hopper_attention_module = Kernels("hopper_attention")
    GEMM_TILES["gemm_128x256"] = CONV_TILES["conv_128x256"] = (128, 256, 256, 4 * 384 * 128)
    GEMM_TILES["gemm_192x256"] = CONV_TILES["conv_192x256"] = (192, 256, 384, 4 * 448 * 128)
LARGE_GEMMS = ["gemm_128x128", *("gemm_128x256", "gemm_192x256") * IS_HOPPER]
WIDE_CONVS = ["conv_128x256", "conv_192x256"] * IS_HOPPER


def module_of(kernel, module):
    return hopper_module if kernel.endswith("x256") else module


def compare(name, found, truth, ulps, absolute):
    """Fails where an error is above `ulps` units in the last place and `absolute` together; NaN always fails.

    Sums in f32 are off by a part of their terms, not of themselves: `absolute` is for those near zero.
    """
    error = (found.double() - truth).abs()
    unit = error / h.units(found, truth).clamp_min(1e-30)
    over = error - ulps * torch.where(error > 0, unit, torch.zeros_like(unit))
    bad = ~(over <= absolute)
    relative = (error.norm() / truth.norm().clamp_min(1e-300)).item()
    line = f"{name:72} beyond {ulps} ulp {over.max().item():9.2e}, relative {relative:.2e}"
    if bad.any():
        h.failures.append(name)
        print(f"FAIL {line} ({int(bad.sum())} of {bad.numel()} above {absolute:.1e})")
    else:
        print(f"ok   {line}")


def is_aligned(*tensors):
    return all(
        t is None or (t.data_ptr() % 16 == 0 and t.stride(0) * t.element_size() % 16 == 0 and t.shape[1] % 8 == 0)
        for t in tensors
    )


def flags(activation, bias, gate, base, out, x=None, w=None):
    value = ACTIVATIONS[activation][0]
    for bit, tensor in enumerate((bias, gate, base, out, x, w), start=2):
        if tensor is not None and tensor.dtype == F32:
            value |= 1 << bit
    return value | (256 if is_aligned(bias, gate, base, out) else 0)


# --- products -----------------------------------------------------------------------------------------


def gemm(kernel, x, w, out, bias=None, activation="none", base=None, gate=None, gate_step=0, step=None):
    rows, cols, threads, shared = GEMM_TILES[kernel]
    (m, k), n = x.shape, w.shape[0]
    args = [x, u32(0), u32(x.stride(0)), w, u32(w.stride(0)), bias, gate, u32(gate_step), base, u32(0)]
    args += [u32(base.stride(0) if base is not None else 0), out, u32(0), u32(out.stride(0)), step]
    args += [u32(m), u32(n), u32(k), u32(flags(activation, bias, gate, base, out, x, w))]
    grid = -(-m // rows) * -(-n // cols)
    module_of(kernel, gemm_module).launch(kernel, grid, threads, args, shared)


def gemm_reference(x, w, bias=None, activation="none", base=None, gate=None):
    value = x.double() @ w.double().T
    if bias is not None:
        value = value + bias.double()
    value = ACTIVATIONS[activation][1](value)
    if base is not None:
        value = base.double() + (gate.double() * value if gate is not None else value)
    return value


def check_gemm(kernel, m, n, k, dtypes=(BF16,) * 6, pad=0, skew=0, activation="none", parts="b"):
    """`parts`: b bias, r residual, g gate, i residual in place. `dtypes`: x, w, bias, base, gate, out."""
    x, w = (matrix(r, k, t, k + pad, 1.0, skew=skew) for r, t in ((m, dtypes[0]), (n, dtypes[1])))
    w.mul_(k**-0.5)
    bias = matrix(1, n, dtypes[2]) if "b" in parts else None
    gate = matrix(1, n, dtypes[4]) if "g" in parts else None
    out = matrix(m, n, dtypes[5], n + 2 * pad, None, skew=skew)
    base = matrix(m, n, dtypes[3], n + 3 * pad, skew=skew) if "r" in parts else None
    if "i" in parts:
        base = out
        base.copy_(torch.randn(m, n, device="cuda"))
    truth = gemm_reference(x, w, bias, activation, base, gate)
    gemm(kernel, x, w, out, bias, activation, base, gate)
    types = "/".join(str(t).split(".")[1][:4] for t in (dtypes[0], dtypes[1], dtypes[5]))
    name = f"{kernel} {m}x{n}x{k} {types} +{pad} {activation} {parts}"
    # A gate makes an error larger as it does the sum.
    scale = 1.0 if gate is None else gate.abs().max().item()
    compare(name, out, truth, 0.51, scale * (4e-6 if kernel == "gemm_any" else 2e-5 * max(1.0, k / 3072)))
    assert_untouched(out, name)


def check_gemms():
    f = (F32,)
    for kernel in (*LARGE_GEMMS, "gemm_64x64", "gemm_16x32"):
        check_gemm(kernel, 300, 264, 320)
        check_gemm(kernel, 77, 3, 72, parts="")
        check_gemm(kernel, 1, 1000, 8, activation="silu")
        check_gemm(kernel, 129, 520, 1544, pad=8, activation="gelu", parts="brg")
        check_gemm(kernel, 65, 200, 768, pad=24, activation="quick", parts="bi")
        check_gemm(kernel, 200, 64, 3072, (BF16, BF16, F32, F32, F32, F32), parts="brg")
        check_gemm(kernel, 31, 129, 264, (BF16, BF16, F32, F32, BF16, F32), pad=8, parts="bgi")
    for types in ((BF16,) * 6, f * 6, (F32, BF16, BF16, BF16, BF16, BF16), (BF16, F32, F32, BF16, F32, F32)):
        check_gemm("gemm_any", 130, 67, 45, types, pad=3, skew=1, activation="gelu", parts="brg")
        check_gemm("gemm_any", 1, 257, 1030, types, activation="silu")
        check_gemm("gemm_any", 70, 64, 16, types, parts="bi")

    # The gate is a row of a table by step.
    x, w, table, step = matrix(40, 128, BF16), matrix(64, 128, BF16), matrix(5, 64, BF16), torch.tensor([3], device="cuda", dtype=torch.int32)
    base, out = matrix(40, 64, BF16), matrix(40, 64, BF16, fill=None)
    gemm("gemm_64x64", x, w, out, base=base, gate=table[:1], gate_step=128, step=step)
    compare("gemm gate of step 3", out, gemm_reference(x, w, base=base, gate=table[3:4]), 0.51, 1e-4)


def check_rows():
    """Bits of a row in every tile and at every number of rows; and beside those of the library."""
    for n, k in ((3072, 3072), (9216, 3072), (3072, 12288), (3072, 15360), (1024, 200)):
        x, w, bias = matrix(4608, k, BF16), matrix(n, k, BF16, fill=k**-0.5), matrix(1, n, BF16)
        whole = matrix(4608, n, BF16, fill=None)
        gemm("gemm_128x128", x, w, whole, bias, "gelu")
        for kernel, m in (*((large, m) for large in LARGE_GEMMS for m in (77, 4608)), ("gemm_64x64", 512), ("gemm_64x64", 4608), ("gemm_16x32", 1), ("gemm_16x32", 16), ("gemm_16x32", 256)):
            for first in (0, 4608 - m):
                out = matrix(m, n, BF16, fill=None)
                gemm(kernel, x[first : first + m], w, out, bias, "gelu")
                same_bits(f"{kernel} rows {first}+{m} of {n}x{k}", out, whole[first : first + m])
        exact = matrix(4608, n, F32, fill=None)
        gemm("gemm_128x128", x, w, exact)
        for kernel, m in (("gemm_64x64", 512), ("gemm_16x32", 1)):
            out = matrix(m, n, F32, fill=None)
            gemm(kernel, x[:m], w, out)
            same_bits(f"{kernel} f32 sums of {n}x{k}", out, exact[:m])
        plain = matrix(4608, n, BF16, fill=None)
        gemm("gemm_128x128", x, w, plain)
        print(f"     library: {(plain != x @ w.T).float().mean().item():.2e} of elements differ")
        a = matrix(300, k, F32)
        whole, few = matrix(300, n, F32, fill=None), matrix(1, n, F32, fill=None)
        gemm("gemm_any", a, w, whole)
        gemm("gemm_any", a[299:], w, few)
        same_bits(f"gemm_any row of {n}x{k}", few, whole[299:])


# --- attention ----------------------------------------------------------------------------------------


def attention(q, k, v, out, heads, scale, bias=None, causal=False):
    d = q.shape[1] // heads
    masked = "_masked" if causal or bias is not None else ""
    args = [q, u32(q.stride(0)), k, u32(k.stride(0)), v, u32(v.stride(0)), out, u32(out.stride(0))]
    args += [u32(len(q)), u32(len(k)), f32(scale), bias, u32(bias.shape[1] if bias is not None else 0), u32(causal)]
    attention_module.launch(f"attention_{d}{masked}", (-(-len(q) // 128), heads), 128, args, (128 + 4 * 64) * d * 2)


def hopper_attention(q, k, v, out, heads, scale, bias=None, causal=False):
    args = [q, u32(q.stride(0)), k, u32(k.stride(0)), v, u32(v.stride(0)), out, u32(out.stride(0))]
    args += [u32(len(q)), u32(len(k)), f32(scale), bias, u32(0), u32(causal)]
    hopper_attention_module.launch("attention_128_hopper", (-(-len(q) // 128), heads), 256, args, 5 * 128 * 128 * 2)


def banded(q, k, v, out, heads, scale, bias=None, causal=False, band=256):
    """What `lower` makes of heads that no kernel of its own takes."""
    d, keys = q.shape[1] // heads, len(k)
    padded = (keys + 7) // 8 * 8
    turned = torch.full((v.shape[1], padded), float("nan"), dtype=v.dtype, device="cuda")
    scores = torch.full((band, padded), float("nan"), device="cuda")
    grid = (-(-padded // 32), -(-v.shape[1] // 32))
    args = [v, u32(v.stride(0)), turned, u32(keys), u32(v.shape[1]), u32(padded), u32(v.dtype == F32)]
    attention_module.launch("attention_transpose", grid, 256, args)
    weights = scores if v.dtype == F32 else scores.view(BF16)
    for head in range(heads):
        cols = slice(head * d, head * d + d)
        for first in range(0, len(q), band):
            rows = slice(first, min(first + band, len(q)))
            part = scores[: rows.stop - first, :keys]
            product(q[rows, cols], k[:, cols], part)
            args = [scores, u32(padded), u32(keys), u32(padded), f32(scale), None if bias is None else bias[head:], u32(0 if bias is None else bias.shape[1]), u32(first), u32(causal), u32(v.dtype == F32)]
            attention_module.launch("attention_softmax", len(part), 256, args)
            product(weights[: len(part), :padded], turned[cols], out[rows, cols])


def product(x, w, out):
    fast = x.dtype == w.dtype == BF16 and is_aligned(x, w)
    tiles = -(-len(x) // 128) * -(-len(w) // 128)
    gemm(("gemm_128x128" if tiles >= 100 else "gemm_64x64") if fast else "gemm_any", x, w, out)


def attention_reference(q, k, v, heads, scale, bias=None, causal=False):
    parts = [t.double().unflatten(1, (heads, -1)).transpose(0, 1) for t in (q, k, v)]
    scores = parts[0] @ parts[1].transpose(1, 2) * scale
    i, j = torch.arange(len(q), device="cuda")[:, None], torch.arange(len(k), device="cuda")[None]
    if bias is not None:
        scores = scores + bias.double()[:, (j - i + (bias.shape[1] - 1) // 2)]
    if causal:
        scores = scores.masked_fill(j > i, float("-inf"))
    return (scores.softmax(-1) @ parts[2]).transpose(0, 1).flatten(1)


def check_attention(run, queries, keys, heads, d, dtype=BF16, causal=False, with_bias=False, scale=None, skew=0, stride=None):
    width = heads * d
    if queries == keys:
        whole = matrix(keys, 3 * width, dtype, stride or 3 * width, skew=skew)
        q, k, v = (whole[:, i * width : (i + 1) * width] for i in range(3))
    else:
        q, k, v = matrix(queries, width, dtype), matrix(keys, width, dtype), matrix(keys, width, dtype, width + 8)
    out = matrix(queries, width, dtype, width + 16 if not skew else width + 3, None)
    bias = matrix(heads, 2 * keys - 1, F32) if with_bias else None
    scale = d**-0.5 if scale is None else scale
    run(q, k, v, out, heads, scale, bias, causal)
    truth = attention_reference(q, k, v, heads, scale, bias, causal)
    name = f"{run.__name__} {queries}x{keys} {heads}x{d} {str(dtype)[6:]}{' causal' * causal}{' bias' * with_bias}"
    # Weights are rounded to bf16 before the second product: an error of 2^-9 of each, which adds up at random.
    # Scores in memory are read twice; heads of few columns have a wider tail (0.0218 was seen with 13).
    size = truth.pow(2).mean().sqrt().item()
    most = 2e-5 if dtype == F32 else 0.03 if run is banded else 0.02
    compare(name, out, truth, 0.51, size * most)
    relative = ((out.double() - truth).norm() / truth.norm()).item()
    limit = 4e-3 if dtype == BF16 else 3e-6
    if not relative < limit:
        h.failures.append(name)
        print(f"FAIL {name}: relative {relative:.2e} over {limit}")
    assert_untouched(out, name)
    return q, k, v, out, scale


def check_attentions():
    for run, d in ((attention, 64), (attention, 128), *((hopper_attention, 128),) * IS_HOPPER):
        check_attention(run, 512, 512, 3, d)
        check_attention(run, 77, 77, 2, d)
        check_attention(run, 1, 300, 2, d)
        check_attention(run, 333, 129, 2, d)
        check_attention(run, 130, 7, 1, d)
        q, k, v, out, scale = check_attention(run, 4608, 4608, 4, d)
        for first, count in ((0, 77), (0, 512), (4600, 8)):
            few = matrix(count, 4 * d, BF16, fill=None)
            run(q[first : first + count], k, v, few, 4, scale)
            same_bits(f"{run.__name__} {d} queries {first}+{count}", few, out[first : first + count])
    check_attention(attention, 77, 77, 12, 64, causal=True)
    check_attention(attention, 300, 300, 2, 64, causal=True)
    check_attention(attention, 512, 512, 8, 64, with_bias=True, scale=1.0)
    check_attention(attention, 131, 131, 3, 64, with_bias=True, causal=True, scale=0.3)
    check_attention(banded, 1024, 1024, 1, 512)
    check_attention(banded, 77, 77, 3, 24, causal=True)
    check_attention(banded, 300, 300, 2, 80, with_bias=True)
    check_attention(banded, 301, 301, 2, 36, F32, with_bias=True, causal=True)
    check_attention(banded, 515, 515, 1, 96, F32)
    check_attention(banded, 301, 301, 2, 13, skew=1, stride=93)


# --- convolution --------------------------------------------------------------------------------------


def conv(x, height, width, upscale, w, bias, out, base=None, kernel=None, ordered=None, margin=(0, 0)):
    (n, channels), shift = (w.shape[0], w.shape[1] // 9), upscale - 1
    first, pixels = margin[0] * width << 2 * shift, (height - sum(margin)) * width << 2 * shift
    if kernel is None:
        fast = x.dtype == w.dtype == BF16 and channels % 8 == 0 and is_aligned(x)
        kernel = ("conv_128x16" if n <= 16 else "conv_128x128") if fast else "conv_any"
    if kernel != "conv_any":
        if ordered is None:
            ordered = torch.full((n, 9 * channels), float("nan"), dtype=BF16, device="cuda")
        count = n * 9 * channels
        conv_module.launch("conv_weights", min(-(-count // 256), 4096), 256, [w, u32(w.stride(0)), ordered, u32(n), u32(channels)])
        w = ordered
    args = [x, u32(x.stride(0)), u32(height), u32(width), u32(shift), u32(first), u32(pixels), u32(channels), w, u32(w.stride(0)), bias, base]
    args += [u32(base.stride(0) if base is not None else 0), out, u32(out.stride(0)), u32(n), u32(flags("none", bias, None, base, out, x, w))]
    rows, cols, threads, shared = CONV_TILES[kernel]
    module_of(kernel, conv_module).launch(kernel, -(-pixels // rows) * -(-n // cols), threads, args, shared)


def check_conv(height, width, upscale, channels, n, dtype=BF16, out_dtype=None, residual=False, pad=0, kernel=None, margin=(0, 0)):
    x, w = matrix(height * width, channels, dtype, channels + pad), matrix(n, 9 * channels, dtype, fill=(9 * channels) ** -0.5)
    bias = matrix(1, n, dtype)
    pixels = (height - sum(margin)) * width * upscale**2
    out = matrix(pixels, n, out_dtype or dtype, n + pad, None)
    base = matrix(pixels, n, dtype) if residual else None
    conv(x, height, width, upscale, w, bias, out, base, kernel, margin=margin)
    picture = x.double().T.reshape(1, channels, height, width)
    picture = picture.repeat_interleave(upscale, 2).repeat_interleave(upscale, 3)
    truth = F.conv2d(picture, w.double().view(n, channels, 3, 3), bias.double()[0], padding=1)[0].flatten(1).T
    # Of a band the first and the last row are only seen.
    truth = truth[margin[0] * width * upscale**2 :][:pixels]
    if residual:
        truth = truth + base.double()
    name = f"conv {height}x{width} up {upscale} {channels}->{n} {str(dtype)[6:]}{' residual' * residual} {kernel or ''}{f' margin {margin}' * any(margin)}"
    compare(name, out, truth, 0.51, 4e-6 if dtype == F32 else 2e-5 * max(1.0, channels / 340))
    assert_untouched(out, name)


def check_convs():
    for channels, n in ((8, 8), (16, 512), (32, 64), (96, 96), (512, 256), (128, 3), (256, 16)):
        check_conv(17, 23, 1, channels, n, residual=n > 3)
        check_conv(9, 14, 2, channels, n, pad=8)
    check_conv(40, 33, 1, 128, 3, out_dtype=F32)
    check_conv(33, 18, 1, 40, 72, kernel="conv_128x16")
    check_conv(1, 1, 1, 8, 8)
    for kernel in WIDE_CONVS:
        check_conv(41, 19, 2, 96, 300, residual=True, kernel=kernel)
        check_conv(41, 19, 1, 24, 256, pad=8, kernel=kernel)
    for margin in ((0, 1), (1, 1), (1, 0)):
        for kernel in (None, *WIDE_CONVS):
            check_conv(41, 19, 1, 64, 256, pad=8, kernel=kernel, margin=margin)
        check_conv(12, 9, 2, 40, 16, residual=True, margin=margin)
        check_conv(7, 5, 2, 5, 7, F32, margin=margin)
    for upscale in (1, 2):
        check_conv(11, 13, upscale, 12, 20, residual=True)
        check_conv(11, 13, upscale, 32, 70, F32, residual=True, pad=1)
        check_conv(5, 7, upscale, 3, 5, F32)


# --- time ---------------------------------------------------------------------------------------------


def time_all():
    print("\nproducts, TFLOP/s (us)")
    for n, k in ((9216, 3072), (3072, 3072), (12288, 3072), (3072, 12288), (3072, 15360)):
        for m in (4608, 4096, 512, 256, 77):
            count = max(1, min(8, int(2e8 / (n * k))))
            xs, ws = [matrix(m, k, BF16) for _ in range(count)], [matrix(n, k, BF16, fill=0.02) for _ in range(count)]
            outs, bias = [matrix(m, n, BF16, fill=None) for _ in range(count)], matrix(1, n, BF16)
            line = f"  m {m} n {n} k {k}:"
            for kernel in LARGE_GEMMS + ["gemm_64x64"] * (m < 600):
                s = h.seconds(lambda i: gemm(kernel, xs[i % count], ws[i % count], outs[i % count], bias), 8, 3)
                line += f"  {kernel[5:]} {2 * m * n * k / s / 1e12:.0f} ({s * 1e6:.0f})"
            s = h.seconds(lambda i: torch.mm(xs[i % count], ws[i % count].T, out=outs[i % count]), 8, 3)
            print(f"{line}  library {2 * m * n * k / s / 1e12:.0f}")
    for n, k in ((18432, 3072), (9216, 3072), (3072, 3072), (3072, 256), (3072, 768)):
        count = max(2, int(2e8 / (n * k)))
        ws = [matrix(n, k, BF16, fill=0.02) for _ in range(count)]
        x, out, bias = matrix(1, k, BF16), matrix(1, n, BF16, fill=None), matrix(1, n, BF16)
        s = h.seconds(lambda i: gemm("gemm_16x32", x, ws[i % count], out, bias), 2 * count, 3)
        print(f"  m 1 n {n} k {k}: {s * 1e6:.1f} us, {n * k * 2 / s / 1e12:.2f} TB/s")
    x, w, base, gate = matrix(4608, 3072, BF16), matrix(3072, 3072, BF16), matrix(4608, 3072, BF16), matrix(1, 3072, BF16)
    out, bias = matrix(4608, 3072, BF16, fill=None), matrix(1, 3072, BF16)
    for kernel in LARGE_GEMMS:
        s = h.seconds(lambda i: gemm(kernel, x, w, out, bias, "none", base, gate), 8, 3)
        print(f"  {kernel} gated 4608x3072x3072: {2 * 4608 * 3072 * 3072 / s / 1e12:.0f} ({s * 1e6:.0f})")
    xs, w, out = matrix(4096, 64, F32), matrix(3072, 64, BF16), matrix(4096, 3072, BF16, fill=None)
    print(f"  any 4096x3072x64: {h.seconds(lambda i: gemm('gemm_any', xs, w, out)) * 1e6:.0f} us")
    xs, w, out = matrix(4608, 3072, F32), matrix(3072, 3072, F32), matrix(4608, 3072, F32, fill=None)
    s = h.seconds(lambda i: gemm("gemm_any", xs, w, out), 2, 2)
    print(f"  any f32 4608x3072x3072: {s * 1e3:.2f} ms, {2 * 4608 * 3072 * 3072 / s / 1e12:.1f} TFLOP/s")

    print("attention, TFLOP/s (us)")
    for tokens, heads, d, kind in ((4608, 24, 128, ""), (1536, 24, 128, ""), (4608, 24, 64, ""), (512, 64, 64, "bias"), (77, 12, 64, "causal")):
        q, k, v, out = (matrix(tokens, heads * d, BF16) for _ in range(4))
        bias = matrix(heads, 2 * tokens - 1, F32) if kind == "bias" else None
        line = f"  {tokens} {heads}x{d} {kind}:"
        for run in (attention, *(hopper_attention,) * (IS_HOPPER and d == 128)):
            s = h.seconds(lambda i: run(q, k, v, out, heads, d**-0.5, bias, kind == "causal"), 4, 3)
            line += f"  {4 * tokens**2 * heads * d / s / 1e12:.0f} ({s * 1e6:.0f})"
        print(line)
    for tokens in (4096, 16384):
        q, k, v, out = (matrix(tokens, 512, BF16) for _ in range(4))
        s = h.seconds(lambda i: banded(q, k, v, out, 1, 512**-0.5, band=1024), 1, 3)
        print(f"  {tokens} 1x512 banded: {4 * tokens**2 * 512 / s / 1e12:.0f} ({s * 1e6:.0f})")

    print("convolution, TFLOP/s (us)")
    for side, upscale, channels, n in ((128, 1, 512, 512), (256, 1, 512, 512), (256, 2, 512, 512), (512, 1, 512, 256), (512, 1, 256, 256), (1024, 1, 256, 128), (1024, 1, 128, 128), (1024, 1, 128, 3), (128, 1, 16, 512)):
        x, w, bias = matrix(side * side, channels, BF16), matrix(n, 9 * channels, BF16), matrix(1, n, BF16)
        pixels = side * side * upscale**2
        out = matrix(pixels, n, BF16 if n > 3 else F32, fill=None)
        ordered = torch.empty(n, 9 * channels, dtype=BF16, device="cuda")
        line = f"  {side}^2 up {upscale} {channels}->{n}:"
        for kernel in [None] + WIDE_CONVS * (n >= 256):
            s = h.seconds(lambda i: conv(x, side, side, upscale, w, bias, out, None, kernel, ordered), 2, 3)
            line += f"  {kernel or ''} {2 * pixels * 9 * channels * n / s / 1e12:.0f} ({s * 1e6:.0f})"
        print(line)


# --- products of 8-bit operands -----------------------------------------------------------------------

HAS_F8 = torch.cuda.get_device_capability() in ((8, 9), (9, 0), (12, 0))
F8_TILES = {"gemm_f8_128x128": (128, 128, 128, 3 * 256 * 128), "gemm_f8_64x64": (64, 64, 128, 4 * 128 * 128)}
if IS_HOPPER:
    F8_TILES["gemm_f8_128x256"] = (128, 256, 256, 4 * 384 * 128)
    F8_TILES["gemm_f8_192x256"] = (192, 256, 384, 4 * 448 * 128)
F8_STEP = torch.tensor([3], dtype=torch.int32, device="cuda")


def f8_rows(x):
    """Codes and a scale a row."""
    most = x.float().abs().amax(1, keepdim=True).clamp_min(1e-30)
    return (x.float() * (448.0 / most)).clamp(-448.0, 448.0).to(torch.float8_e4m3fn), (most / 448.0)[:, 0].contiguous()


def gemm_f8(module, kernel, x, w, x_scale, w_scale, out, bias=None, activation="none", base=None, gate=None, gate_step=0):
    rows, cols, threads, shared = F8_TILES[kernel]
    (m, k), n = x.shape, w.shape[0]
    args = [x, u32(0), u32(x.stride(0)), w, u32(w.stride(0)), bias, gate, u32(gate_step), base, u32(0)]
    args += [u32(base.stride(0) if base is not None else 0), out, u32(0), u32(out.stride(0)), F8_STEP if gate_step else None]
    args += [u32(m), u32(n), u32(k), u32(flags(activation, bias, gate, base, out)), x_scale, w_scale]
    module.launch(kernel, -(-m // rows) * -(-n // cols), threads, args, shared)


def check_f8_product(module, kernel, rows, n, k, activation="none", parts="", pad=0, dtype=BF16):
    """Errors beside float64 of the same codes.

    Sums of 8-bit products keep some 13 bits in the tensor cores: what is lost grows with the root of their number.
    """
    x, x_scale = f8_rows(torch.randn(rows[0], k, device="cuda"))
    w, w_scale = f8_rows(torch.randn(n, k, device="cuda") * k**-0.5)
    bias = matrix(1, n, dtype) if "b" in parts else None
    table = matrix(5, n, dtype) if "g" in parts else None
    gate = table[3:4] if table is not None else None
    gate_step = table.stride(0) * table.element_size() if table is not None else 0
    whole = None
    for m in rows:
        out = matrix(m, n, dtype, n + pad, None)
        base = matrix(rows[0], n, dtype, n + 2 * pad)[:m] if "r" in parts else None
        if whole is not None and base is not None:
            base = whole[1][:m]
        if "i" in parts:
            base = out
            h.generator.manual_seed(7)
            out.copy_(torch.randn(rows[0], n, generator=h.generator, device="cuda")[:m])
        before = base.double() if base is not None else None
        a, b = x[:m].double() * x_scale[:m, None].double(), w.double() * w_scale[:, None].double()
        truth = gemm_reference(a, b, bias, activation, before, gate)
        gemm_f8(module, kernel, x[:m], w, x_scale, w_scale, out, bias, activation, base, table, gate_step)
        name = f"{kernel} {m}x{n}x{k} +{pad} {activation} {parts} {str(dtype)[6:]}"
        scale = 1.0 if gate is None else max(1.0, gate.abs().max().item())
        compare(name, out, truth, 0.51, scale * 2e-2 * (k / 3072) ** 0.5)
        assert_untouched(out, name)
        if whole is None:
            whole = (out, base)
        else:
            same_bits(f"{name} rows", out, whole[0][:m])


def check_f8():
    module = Kernels("gemm_f8")
    for kernel in F8_TILES:
        many, few = (4608, 77, 64, 7, 1), (512, 77, 64, 7, 1)
        check_f8_product(module, kernel, many, 264, 320, "none", "b")
        check_f8_product(module, kernel, many, 520, 1552, "gelu", "b", 8)
        check_f8_product(module, kernel, many, 77, 48, "silu", "", 3)
        check_f8_product(module, kernel, many, 3072, 3072, "none", "brg", 8)
        check_f8_product(module, kernel, few, 256, 12288, "none", "big")
        check_f8_product(module, kernel, few, 128, 15360, "none", "r")
        check_f8_product(module, kernel, few, 77, 1552, "quick", "brg", 3, F32)
        first = next(iter(F8_TILES))
        x, x_scale = f8_rows(torch.randn(300, 3072, device="cuda"))
        w, w_scale = f8_rows(torch.randn(520, 3072, device="cuda"))
        one, other = (matrix(300, 520, BF16, fill=None) for _ in range(2))
        gemm_f8(module, first, x, w, x_scale, w_scale, one)
        gemm_f8(module, kernel, x, w, x_scale, w_scale, other)
        same_bits(f"{kernel} and {first}", one, other)


def time_f8():
    module = Kernels("gemm_f8")
    print("8-bit products, TFLOP/s (us); the library's is torch._scaled_mm with scales of rows")
    for m, n, k in ((4608, 12288, 3072), (4608, 3072, 15360), (512, 12288, 3072), (512, 3072, 12288), (1, 12288, 3072)):
        (x, x_scale), (w, w_scale) = (f8_rows(torch.randn(rows, k, device="cuda")) for rows in (m, n))
        out = matrix(m, n, BF16, fill=None)
        runs = {kernel: lambda i, kernel=kernel: gemm_f8(module, kernel, x, w, x_scale, w_scale, out) for kernel in F8_TILES}
        if m % 16 == 0:
            runs["library"] = lambda i: torch._scaled_mm(x, w.T, x_scale[:, None], w_scale[None], out_dtype=BF16, use_fast_accum=True)
        h.seconds(next(iter(runs.values())), 20, 20)
        line = f"  {m}x{n}x{k}:"
        for name, run in runs.items():
            s = h.seconds(run, 20, 10)
            line += f"  {name} {2 * m * n * k / s / 1e12:.0f} ({s * 1e6:.0f})"
        print(line)


def check_few():
    for kernel in (*LARGE_GEMMS, "gemm_64x64", "gemm_16x32"):
        check_gemm(kernel, 140, 200, 584, activation="gelu", parts="brg")
        check_gemm(kernel, 20, 33, 264, (BF16, BF16, F32, F32, BF16, F32), pad=8, parts="bgi")
    check_gemm("gemm_any", 70, 67, 45, pad=3, skew=1, activation="silu", parts="brg")
    if HAS_F8:
        for kernel in F8_TILES:
            check_f8_product(Kernels("gemm_f8"), kernel, (140, 7), 200, 592, "gelu", "brg", 8)
    for run, d in ((attention, 64), (attention, 128), *((hopper_attention, 128),) * IS_HOPPER):
        check_attention(run, 140, 333, 2, d)
    check_attention(attention, 140, 140, 2, 64, causal=True, with_bias=True)
    check_attention(banded, 140, 140, 2, 80, with_bias=True)
    for kernel in ("conv_128x128", "conv_128x16", "conv_any", *WIDE_CONVS):
        check_conv(9, 17, 2, 40, 24, residual=True, kernel=kernel)
        check_conv(9, 17, 1, 40, 24, kernel=kernel, margin=(1, 1))


def main():
    wanted = sys.argv[1:] or ["check", "time"]
    h.seed(torch.seed() % 2**31)
    if "few" in wanted:
        check_few()
    if "check" in wanted:
        for check in (check_gemms, check_rows, check_attentions, check_convs, *(check_f8,) * HAS_F8):
            check()
            torch.cuda.synchronize()
    if "f8" in wanted:
        check_f8()
        time_f8()
    if "time" in wanted:
        time_all()
        if HAS_F8:
            time_f8()
    h.finish()


if __name__ == "__main__":
    main()
