#!/usr/bin/env python3
"""Checks and times the kernels of the light ops (crates/cuda-kernels/kernels/light_*.cu) on a card.

    tools/check_kernels.py [--seed N] [--rates] [--only f8,map,norm,rope,group_norm,small]

Each kernel runs on fresh random operands with NaN all around (see cuda_harness.py) at even, odd and strided
sizes, with mixed element types, in place where that is allowed, and at a step of the loop; the results are judged
against float64 in units in the last place. `--rates` adds the bytes a second at the shapes of FLUX.1 at 1024x1024.
The launches are written by hand; that `lower` makes the same ones is for the tests of device-cuda.
"""

import argparse
import math

import torch

import cuda_harness as h
from cuda_harness import compare, f32, matrix, u32, u64

BF16, F32 = torch.bfloat16, torch.float32
F8, MAP, NORM, ROPE, GROUP, SMALL = (h.Kernels(f"light_{name}") for name in ["f8", "map", "norm", "rope", "group_norm", "small"])
STEP = torch.tensor([3], dtype=torch.int32, device="cuda")


def table(rows, cols, dtype, **more):
    """A row that moves with the step: `(row of STEP, argument that names row 0, bytes a step)`."""
    whole = matrix(rows, cols, dtype, **more)
    return whole[3:4], whole, whole.stride(0) * whole.element_size()


def arguments(operands, *numbers, step_bytes=None):
    """Operands, numbers, the mask of types and the step, as `Arguments` of `lower` lays them out."""
    args, mask = [], 0
    for index, operand in enumerate(operands):
        if operand is None:
            args += [None, u32(0), u32(0)]
            continue
        moved = (step_bytes or {}).get(index, 0)
        args += [operand, u32(operand.stride(0)), u32(moved)]
        mask |= (operand.dtype != BF16) << index
    return [*args, *numbers, u32(mask), STEP if step_bytes else None]


def map_launch(kernel, width, operands, rows, cols, *numbers, step_bytes=None):
    grid = math.ceil(rows * cols / width / 256)
    MAP.launch(f"{kernel}_{width}", grid, 256, arguments(operands, u32(rows), u32(cols), *numbers, step_bytes=step_bytes))


# --- references ---------------------------------------------------------------------------------------


def silu(x):
    return x * torch.sigmoid(x)


def gelu(x):
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def quick_gelu(x):
    return x * torch.sigmoid(1.702 * x)


def layer_norm(x, eps):
    mean = x.mean(1, keepdim=True)
    return (x - mean) / ((x - mean).square().mean(1, keepdim=True) + eps).sqrt()


def rms_norm(x, eps):
    return x / (x.square().mean(1, keepdim=True) + eps).sqrt()


# Half a unit of bf16 and what sums in f32 may be off by; some units of f32. Beyond that, the rounding of
# intermediate numbers near 1, which a small difference of them inherits.
MOST = {BF16: 0.51, F32: 12.0}
ABSOLUTE = 1e-6


def judge(name, out, truth, most=None, absolute=ABSOLUTE):
    compare(name, out, truth, MOST[out.dtype] if most is None else most, absolute)
    h.assert_untouched(out, name)


# --- 8 bits -------------------------------------------------------------------------------------------


def check_f8():
    """Rows to 8 bits: the codes that torch rounds to, and a scale a row."""
    for rows, cols, stride, skew in [(3, 64, 64, 0), (5, 3072, 3080, 8), (2, 4096, 4096, 0), (3, 15360, 15360, 0), (2, 16400, 16400, 0), (4, 80, 81, 1)]:
        x = matrix(rows, cols, BF16, stride=stride, skew=skew)
        x[0] = 0.0
        scale = matrix(1, rows, F32, fill=None)
        codes = torch.full((rows * cols + 512,), 0x7F, dtype=torch.uint8, device="cuda")
        is_vector = all(size % 8 == 0 for size in (cols, stride, skew))
        kernel = "quantize_f8_any" if not is_vector or cols > 16384 else "quantize_f8_4" if cols <= 4096 else "quantize_f8_16"
        # Blocks behind the rows' fold a gate that moves with the step into scales and bias of columns.
        n = [16, 272, 3072][rows % 3]
        w_scale, bias = matrix(1, n, F32), matrix(1, n, BF16)
        gate, first, step_bytes = table(5, n, BF16)
        gated_scale, gated_bias = matrix(1, n, F32, fill=None), matrix(1, n, BF16, fill=None)
        has_bias = rows != 5
        F8.launch(kernel, rows + -(-n // 128), 128, [x, u32(x.stride(0)), u32(0), scale, codes, u32(cols), u32(rows), w_scale, first,
                  u32(step_bytes), bias if has_bias else None, gated_scale, gated_bias, u32(n), STEP])
        most = x.float().abs().amax(1)
        # A number over a tensor is the reciprocal times the number in torch, rounded twice.
        factor = torch.where(most > 0, torch.full_like(most, 448.0) / most, torch.zeros_like(most))
        truth = (x.float() * factor[:, None]).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
        at = f"{kernel} [{rows},{cols}/{stride}]"
        judge(f"{at} scales", scale, (most / 448.0)[None])
        judge(f"{at} scales of {n} gated columns", gated_scale, w_scale.double() * gate.double())
        if has_bias:
            judge(f"{at} bias of {n} gated columns", gated_bias, bias.double() * gate.double())
        found = codes[: rows * cols].view(rows, cols)
        same = bool((found == truth.view(torch.uint8)).all()) and bool((codes[rows * cols :] == 0x7F).all())
        print(f"{'ok  ' if same else 'FAIL'} {at} codes")
        if not same:
            h.failures.append(f"{at}: other codes")


# --- elementwise --------------------------------------------------------------------------------------


def check_map():
    sizes = [(8, 64, 1024, 1030 * 8, 8), (1, 37, 53, 61, 1), (8, 1, 4096, 4096, 8), (1, 3, 1, 1, 3)]
    for width, rows, cols, stride, skew in sizes:
        for source, target in [(BF16, BF16), (BF16, F32), (F32, BF16), (F32, F32)]:
            at = f"[{rows},{cols}] {str(source)[6:]}->{str(target)[6:]}"
            new = lambda dtype, **more: matrix(rows, cols, dtype, stride=stride, skew=skew, **more)
            x, b, out = new(source), new(target), new(target, fill=None)
            map_launch("copy", width, [x, out], rows, cols)
            judge(f"copy {at}", out, x)

            h.poison(out)
            map_launch("add", width, [x, b, out], rows, cols, u32(rows))
            judge(f"add {at}", out, x.double() + b.double())
            row = matrix(1, cols, BF16)
            in_place = x.dtype == out.dtype
            truth = x.double() + row.double()
            target_of = x if in_place else out
            h.poison(out)
            map_launch("add", width, [x, row, target_of], rows, cols, u32(1))
            judge(f"add row {at}{' in place' if in_place else ''}", target_of, truth)

            for kind, function in [(1, silu), (2, gelu), (3, quick_gelu)]:
                x = new(source, fill=4.0)
                h.poison(out)
                map_launch("activate", width, [x, out], rows, cols, u32(kind))
                judge(f"{function.__name__} {at}", out, function(x.double()), MOST[target])

            x = matrix(rows, 2 * cols, source, stride=2 * stride, skew=skew)
            if width == 1 or (2 * stride) % 8 == 0:
                h.poison(out)
                map_launch("glu_gelu", width, [x, out], rows, cols)
                truth = gelu(x[:, :cols].double()) * x[:, cols:].double()
                judge(f"glu_gelu {at}", out, truth, MOST[target])

            x, base = new(source), new(target)
            gate, first, step_bytes = table(5, cols, BF16)
            truth = base.double() + gate.double() * x.double()
            map_launch("gated_residual", width, [base, x, first, base], rows, cols, step_bytes={2: step_bytes})
            judge(f"gated_residual {at} in place, step", base, truth)
            h.poison(out)
            map_launch("gated_residual", width, [b, x, None, out], rows, cols)
            judge(f"residual {at}", out, b.double() + x.double())

        latent, velocity = (matrix(rows, cols, F32, stride=stride, skew=skew) for _ in range(2))
        dsigma, first, step_bytes = table(5, 1, F32)
        truth = latent.double() + dsigma.double() * velocity.double()
        map_launch("euler", width, [latent, velocity, first], rows, cols, step_bytes={2: step_bytes})
        judge(f"euler [{rows},{cols}]", latent, truth)


# --- norms --------------------------------------------------------------------------------------------


def norm_launch(kernel, kind, operands, eps=1e-6, step_bytes=None):
    out = operands[-1]
    args = arguments(operands, u32(out.shape[1]), u32(kind), f32(eps), step_bytes=step_bytes)
    NORM.launch(kernel, out.shape[0], 256 if "wide" in kernel else 128, args)


def check_norm():
    cases = [("norm_1", 77, 768), ("norm_1", 3, 8), ("norm_2", 9, 2048), ("norm_3", 33, 3072), ("norm_4", 17, 4096)]
    cases += [("norm_wide_8", 5, 18432), ("norm_wide_8", 6, 768), ("norm_wide_1", 7, 333), ("norm_wide_1", 3, 5)]
    for kernel, rows, cols in cases:
        types = [(BF16, BF16, BF16)]
        if "wide" in kernel:
            types += [(F32, BF16, F32), (BF16, F32, F32), (F32, F32, BF16)]
        for source, parameter, target in types:
            at = f"{kernel} [{rows},{cols}] {str(source)[6:]},{str(parameter)[6:]}->{str(target)[6:]}"
            stride = cols + 16
            # A mean of several deviations: squares must not be summed before it is off.
            x = matrix(rows, cols, source, stride=stride, fill=0.7, mean=5.0)
            out = matrix(rows, cols, target, stride=stride, fill=None)
            (scale, first, step), (shift, second, _) = (table(5, cols, parameter, fill=0.5) for _ in range(2))
            normal = layer_norm(x.double(), 1e-6)
            truth = normal * (1 + scale.double()) + shift.double()
            most = MOST[target]
            norm_launch(kernel, 0, [x, first, second, out], step_bytes={1: step, 2: step})
            judge(f"modulated {at}, step", out, truth, most, 3e-6)
            whole = out.clone()
            if rows > 2:
                h.poison(out)
                norm_launch(kernel, 0, [x[2:3], first, second, out[2:3]], step_bytes={1: step, 2: step})
                h.same_bits(f"modulated {at}, a row alone", out[2:3], whole[2:3])
            h.poison(out)
            norm_launch(kernel, 1, [x, scale, shift, out], eps=1e-5)
            truth = layer_norm(x.double(), 1e-5) * scale.double() + shift.double()
            judge(f"affine {at}", out, truth, most, 3e-6)

            truth = rms_norm(x.double(), 1e-6)
            if target == BF16:
                # Rounded in between: a tie that falls the other way is a unit, twice rounded.
                truth = truth.to(BF16).double()
            truth = truth * scale.double()
            in_place = source == target
            result = x if in_place else out
            h.poison(out)
            norm_launch(kernel, 2, [x, scale, None, result])
            judge(f"rms {at}{' in place' if in_place else ''}", result, truth, 2.01 if target == BF16 else 8)


def check_rope():
    cases = [(4, 9, 3, 32), (8, 13, 5, 64), (16, 40, 24, 128), ("any", 7, 3, 96), ("any", 5, 2, 6)]
    for group, rows, heads, head_dim in cases:
        for dtype in [BF16, F32]:
            cols = heads * head_dim
            qkv = matrix(rows, 3 * cols, dtype, mean=0.3)
            before = qkv.clone()
            q, k = qkv[:, :cols], qkv[:, cols : 2 * cols]
            weights = [matrix(1, head_dim, kind, mean=1.0, fill=0.3) for kind in [BF16, F32]]
            angle = torch.rand(rows, head_dim // 2, device="cuda") * 100
            rope = matrix(rows, head_dim, F32, fill=None)
            rope.copy_(torch.cat([angle.cos(), angle.sin()], 1))
            args = arguments([q, k, *weights, rope], u32(rows), u32(heads), u32(head_dim), f32(1e-6))
            units = rows * heads
            grid = (math.ceil(units * 32 / 256), 2) if group == "any" else math.ceil(units * group / 256)
            ROPE.launch(f"qk_norm_rope_{group}", grid, 256, args)
            for name, x, weight, at in [("q", q, weights[0], 0), ("k", k, weights[1], cols)]:
                old = before[:, at : at + cols].double().reshape(units, head_dim)
                normal = (rms_norm(old, 1e-6) * weight.double()).reshape(rows, heads, head_dim // 2, 2)
                cos, sin = (part.double().reshape(rows, 1, -1) for part in rope.chunk(2, 1))
                a, b = normal.unbind(3)
                truth = torch.stack([a * cos - b * sin, a * sin + b * cos], 3).reshape(rows, cols)
                compare(f"qk_norm_rope_{group} {name} [{rows},{heads}*{head_dim}] {str(dtype)[6:]}", x, truth, MOST[dtype], 1e-6)
            h.same_bits("  v is as it was", qkv[:, 2 * cols :], before[:, 2 * cols :])
            h.assert_untouched(qkv, f"qk_norm_rope_{group}")


# --- GroupNorm ----------------------------------------------------------------------------------------


def chunks(pixels, channels, most=512):
    """As `Chunks::of` in `lower`."""
    least = min(max(2048 // channels, 1), 2048) * 4
    chunk = max(math.ceil(pixels / most), 1)
    chunk = math.ceil(chunk / least) * least
    return chunk, math.ceil(pixels / chunk)


def group_norm_launch(width, x, weight, bias, out, groups, with_silu, scratch, eps=1e-6):
    pixels, channels = x.shape
    chunk, count = chunks(pixels, channels)
    statistics = scratch[count * groups * 2 :]
    sizes = [u32(pixels), u32(channels), u32(groups)]
    grid = count if width == 8 else (count, groups)
    GROUP.launch(f"group_norm_sums_{width}", grid, 256, arguments([x], scratch, *sizes, u32(chunk)))
    GROUP.launch("group_norm_statistics", groups, 256, arguments([x], scratch, statistics, *sizes, u32(count), f32(eps)))
    band, bands = chunks(pixels, channels, most=2048)
    args = arguments([x, weight, bias, out], statistics, *sizes, u32(band), u32(with_silu))
    GROUP.launch(f"group_norm_apply_{width}", bands, 256, args)


def scratch_of(pixels, channels, groups):
    count = chunks(pixels, channels)[1]
    return torch.full(((count + 1) * groups * 2,), float("nan"), device="cuda")


def group_norm_truth(x, weight, bias, groups, with_silu, eps=1e-6):
    pixels, channels = x.shape
    y = x.double().reshape(pixels, groups, -1).transpose(0, 1)
    mean = y.mean((1, 2), keepdim=True)
    y = (y - mean) / ((y - mean).square().mean((1, 2), keepdim=True) + eps).sqrt()
    y = y.transpose(0, 1).reshape(pixels, channels) * weight.double() + bias.double()
    return silu(y) if with_silu else y


def check_group_norm():
    cases = [(8, 16384, 512, 32), (8, 1000, 128, 32), (8, 1, 64, 8), (8, 37, 2048, 32), (8, 65537, 256, 32)]
    cases += [(1, 500, 6, 3), (1, 77, 36, 2), (1, 3000, 4, 1)]
    for width, pixels, channels, groups in cases:
        for source, target in [(BF16, BF16), (F32, BF16), (F32, F32)]:
            for with_silu, mean in [(0, 0.0), (1, 30.0)]:
                x = matrix(pixels, channels, source, mean=mean)
                if pixels == 1 and channels == groups:
                    continue
                weight, bias = matrix(1, channels, BF16, mean=1.0, fill=0.3), matrix(1, channels, BF16, fill=0.3)
                truth = group_norm_truth(x, weight, bias, groups, with_silu)
                out = x if source == target else matrix(pixels, channels, target, fill=None)
                scratch = scratch_of(pixels, channels, groups)
                group_norm_launch(width, x, weight, bias, out, groups, with_silu, scratch)
                at = f"[{pixels},{channels}/{groups}] {str(source)[6:]}->{str(target)[6:]} mean {mean:.0f}"
                # A mean of 30 costs its rounding to f32, 2e-6, before it is taken off.
                judge(f"group_norm_{width} {at}", out, truth, 0.52 if target == BF16 else 12, 4e-6)


# --- small ops ----------------------------------------------------------------------------------------


def check_small():
    for rows, half, target in [(1, 128, BF16), (5, 128, F32), (3, 7, F32)]:
        x = matrix(rows, 1, F32)
        x.copy_(torch.rand(rows, 1, device="cuda"))
        out = matrix(rows, 2 * half, target, fill=None)
        SMALL.launch("sinusoid", math.ceil(rows * half / 256), 256, arguments([x, out], u32(rows), u32(half)))
        k = torch.arange(half, dtype=F32)
        exponent = torch.tensor(-math.log(10000), dtype=F32) * k / half
        angle = (x.cpu() * 1000) * exponent.double().exp().float()[None]
        truth = torch.cat([angle.double().cos(), angle.double().sin()], 1).cuda()
        judge(f"sinusoid [{rows},{2 * half}]", out, truth, 0.501 if target == BF16 else 0.51, 1e-9)

    for buckets, heads, positions, kind in [(32, 64, 1023, BF16), (8, 3, 5, F32)]:
        weight = matrix(buckets, heads, kind)
        ids = torch.randint(0, buckets + 2, (positions, 1), device="cuda", dtype=torch.int32)
        out = matrix(heads, positions, F32, fill=None)
        args = arguments([weight, ids, out], u32(buckets), u32(heads), u32(positions))
        SMALL.launch("expand_bias", math.ceil(heads * positions / 256), 256, args)
        truth = weight[ids[:, 0].clamp_max(buckets - 1).long()].T
        judge(f"expand_bias [{heads},{positions}]", out, truth, 0.0, 0.0)

    for rows, cols, index in [(77, 768, 12), (5, 333, 9)]:
        x, out = matrix(rows, cols, BF16, stride=cols + 3), matrix(1, cols, F32, fill=None)
        ids = torch.tensor([[index]], device="cuda", dtype=torch.int32)
        SMALL.launch("select_row", math.ceil(cols / 256), 256, arguments([x, ids, out], u32(rows), u32(cols)))
        judge(f"select_row {index} of {rows}", out, x[min(index, rows - 1)][None], 0.0, 0.0)

    for height, width, channels, target in [(128, 128, 16, BF16), (6, 10, 3, F32)]:
        x = matrix(height * width // 4, 4 * channels, F32)
        out = matrix(height * width, channels, target, fill=None)
        args = arguments([x, out], u32(height * width), u32(channels), u32(width), f32(0.3611), f32(0.1159))
        SMALL.launch("unpatchify", math.ceil(height * width * channels / 256), 256, args)
        packed = x.double().reshape(height // 2, width // 2, channels, 2, 2)
        pixels = packed.permute(0, 3, 1, 4, 2).reshape(height * width, channels)
        scale, shift = (torch.tensor(number, dtype=F32).double().item() for number in [0.3611, 0.1159])
        judge(f"unpatchify [{height}*{width},{channels}]", out, pixels / scale + shift, None, 1e-6)


# --- rates --------------------------------------------------------------------------------------------


def rate(name, sets, bytes_moved, run):
    """Rates with operands from memory (several sets in turn) and with one set, which the cache may hold."""
    cold = h.seconds(lambda i: run(sets[i % len(sets)]), launches=4 * len(sets))
    hot = h.seconds(lambda i: run(sets[0]))
    print(f"{name:44} {bytes_moved / 1e6:8.1f} MB {cold * 1e6:8.1f} us {bytes_moved / cold / 1e9:7.0f} GB/s"
          f"   one set {hot * 1e6:8.1f} us {bytes_moved / hot / 1e9:7.0f} GB/s")


def sets_of(bytes_moved, make):
    """Operands of more than 400 MB together: well past the second cache."""
    return [make() for _ in range(max(2, math.ceil(400e6 / bytes_moved)))]


def rates():
    big = [torch.empty(2**29, dtype=torch.uint8, device="cuda") for _ in range(2)]
    ceiling = h.seconds(lambda _: big[0].copy_(big[1]), launches=4)
    print(f"torch copy of 512 MiB: {2 * 2**29 / ceiling / 1e9:.0f} GB/s")
    del big

    for kernel, kind, rows, cols in [("norm_3", 0, 4608, 3072), ("norm_4", 2, 512, 4096), ("norm_1", 1, 77, 768)]:
        moved = 2 * rows * cols * 2
        make = lambda: [matrix(rows, cols, BF16), matrix(1, cols, BF16), matrix(1, cols, BF16), matrix(rows, cols, BF16)]
        rate(f"{kernel} [{rows},{cols}]", sets_of(moved, make), moved, lambda s: norm_launch(kernel, kind, s))

    rows, heads, head_dim = 4608, 24, 128
    cols = heads * head_dim
    moved = 4 * rows * cols * 2 + rows * head_dim * 4

    def make_rope():
        qkv = matrix(rows, 3 * cols, BF16)
        q, k = qkv[:, :cols], qkv[:, cols : 2 * cols]
        return [q, k, matrix(1, head_dim, BF16), matrix(1, head_dim, BF16), matrix(rows, head_dim, F32)]

    def run_rope(s):
        args = arguments(s, u32(rows), u32(heads), u32(head_dim), f32(1e-6))
        ROPE.launch("qk_norm_rope_16", rows * heads * 16 // 256, 256, args)

    rate(f"qk_norm_rope_16 [{rows},{heads}*{head_dim}]", sets_of(moved, make_rope), moved, run_rope)

    def new(rows, cols, dtype=BF16):
        return lambda: matrix(rows, cols, dtype)

    one, flat = (4608, 3072), 4608 * 3072
    shapes = [
        ("copy_8", [new(*one), new(*one)], (1, flat), [], 4 * flat),
        ("add_8", [new(*one), new(*one), new(*one)], (1, flat), [u32(1)], 6 * flat),
        ("gated_residual_8", [new(*one), new(*one), new(1, 3072), new(*one)], one, [], 6 * flat),
        ("activate_8", [new(4608, 12288), new(4608, 12288)], (1, 4608 * 12288), [u32(2)], 4 * 4608 * 12288),
        ("glu_gelu_8", [new(512, 20480), new(512, 10240)], (512, 10240), [], 6 * 512 * 10240),
        ("euler_8", [new(4096, 64, F32), new(4096, 64, F32), new(1, 1, F32)], (1, 4096 * 64), [], 12 * 4096 * 64),
    ]
    for kernel, makers, (rows, cols), numbers, moved in shapes:
        run = lambda s: map_launch(kernel[:-2], 8, s, rows, cols, *numbers)
        rate(f"{kernel} [{rows},{cols}]", sets_of(moved, lambda: [make() for make in makers]), moved, run)

    for pixels, channels in [(1024 * 1024, 128), (1024 * 1024, 256), (512 * 512, 512), (128 * 128, 512)]:
        moved = 3 * pixels * channels * 2

        def make_group():
            x = matrix(pixels, channels, BF16)
            return [x, matrix(1, channels, BF16), matrix(1, channels, BF16), x, 32, 1, scratch_of(pixels, channels, 32)]

        sets = sets_of(moved, make_group)
        rate(f"group_norm_8 + silu [{pixels},{channels}]", sets, moved, lambda s: group_norm_launch(8, *s))
        x, scratch = sets[0][0], sets[0][-1]
        chunk, count = chunks(pixels, channels)
        sizes = [u32(pixels), u32(channels), u32(32)]
        sums = lambda s: GROUP.launch("group_norm_sums_8", count, 256, arguments([s[0]], s[-1], *sizes, u32(chunk)))
        rate("  its sums", sets, moved // 3, sums)
        del sets, x, scratch


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rates", action="store_true", help="also time them")
    checks = {"f8": check_f8, "map": check_map, "norm": check_norm, "rope": check_rope, "group_norm": check_group_norm, "small": check_small}
    parser.add_argument("--only", default=",".join(checks), help="some of them, with commas between")
    options = parser.parse_args()
    h.seed(options.seed)
    torch.manual_seed(options.seed)
    for name in options.only.split(","):
        checks[name]()
    if options.rates:
        rates()
    h.finish()


if __name__ == "__main__":
    main()
