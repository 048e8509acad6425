"""Runs kernels of crates/cuda-kernels/cubin on torch tensors: for the scripts that check and time them.

Needs a CUDA card and torch. Operands lie in buffers that are NaN all over, so that a read past an operand spoils
the result and a write past one is found:

    kernels = Kernels("light_norm")
    x = matrix(5, 768, torch.bfloat16, stride=800)       # random values, NaN between the rows
    out = matrix(5, 768, torch.bfloat16, fill=None)      # NaN all over
    kernels.launch("norm_3", grid, 128, [x, u32(x.stride(0)), u32(0), ..., None])
    compare("norm", out, reference64(x), units=0.51)
    assert_untouched(out)

PLIMSOLL_CUBINS names another folder of them, which `tools/kernels.py plain` has made for the architecture of this card.
Arguments are tensors (their address), `None` (a null pointer) or `u32`, `u64`, `f32` of a number.
"""

import ctypes
import os
import sys
from pathlib import Path

import torch

OTHER = os.environ.get("PLIMSOLL_CUBINS")
CUBINS = Path(OTHER or Path(__file__).resolve().parent.parent / "crates/cuda-kernels/cubin")
ARCHS = {(8, 0): "sm_80", (8, 6): "sm_86", (8, 7): "sm_86", (8, 9): "sm_89"}
ARCHS |= {(9, 0): "sm_90a", (10, 0): "sm_100a", (12, 0): "sm_120a"}
DYNAMIC_SHARED_SIZE_ATTRIBUTE = 8

u32, u64, f32 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_float

failures = []


def arch():
    if OTHER:
        return "sm_{}{}".format(*torch.cuda.get_device_capability())
    return ARCHS[torch.cuda.get_device_capability()]


class Kernels:
    """The kernels of one source, loaded into torch's context."""

    def __init__(self, name):
        torch.zeros(1, device="cuda")  # makes the context current
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.image = (CUBINS / arch() / f"{name}.cubin").read_bytes()
        self.module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(self.module), self.image)
        self.functions = {}

    def call(self, name, *args):
        status = getattr(self.cuda, name)(*args)
        if status != 0:
            raise RuntimeError(f"{name} failed with {status}")

    def function(self, kernel, shared):
        if (kernel, shared) not in self.functions:
            function = ctypes.c_void_p()
            self.call("cuModuleGetFunction", ctypes.byref(function), self.module, kernel.encode())
            if shared > 48 * 1024:
                self.call("cuFuncSetAttribute", function, DYNAMIC_SHARED_SIZE_ATTRIBUTE, shared)
            self.functions[kernel, shared] = function
        return self.functions[kernel, shared]

    def launch(self, kernel, grid, block, args, shared=0):
        """Launches on torch's current stream; `grid` and `block` are numbers or tuples of up to three."""
        values = [
            ctypes.c_void_p(arg.data_ptr()) if isinstance(arg, torch.Tensor) else ctypes.c_void_p() if arg is None else arg
            for arg in args
        ]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        sizes = [(*size, 1, 1)[:3] if isinstance(size, tuple) else (size, 1, 1) for size in (grid, block)]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.call("cuLaunchKernel", self.function(kernel, shared), *sizes[0], *sizes[1], shared, stream, pointers, None)


# --- operands -----------------------------------------------------------------------------------------

generator = None


def seed(number):
    global generator
    generator = torch.Generator(device="cuda").manual_seed(number)


def matrix(rows, cols, dtype, stride=None, fill=1.0, mean=0.0, skew=0):
    """`[rows, cols]` of normal numbers (deviation `fill`), inside a buffer of NaN with a margin on both sides.

    `fill=None` leaves it NaN. `skew` elements move its start off the alignment of 256 bytes.
    """
    stride = stride or cols
    margin = 1024
    if dtype in (torch.int32, torch.uint32):
        raise ValueError("indices are not drawn here")
    whole = torch.full((margin + skew + rows * stride + margin,), float("nan"), dtype=dtype, device="cuda")
    view = whole[margin + skew :].as_strided((rows, cols), (stride, 1), margin + skew)
    if fill is not None:
        values = torch.randn(rows, cols, generator=generator, device="cuda") * fill + mean
        view.copy_(values)
    view.whole = whole
    return view


def poison(view):
    """NaN all over, to be computed again."""
    view.whole.fill_(float("nan"))


def assert_untouched(view, name="operand"):
    """Everything around a matrix is still NaN."""
    mask = torch.ones_like(view.whole, dtype=torch.bool)
    mask.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(False)
    if not view.whole[mask].isnan().all():
        failures.append(f"{name}: wrote outside")
        print(f"FAIL {name}: wrote outside of the matrix")


# --- judging ------------------------------------------------------------------------------------------


def units(found, truth):
    """Errors in units of the last place of `found`'s type at the truth."""
    digits = {torch.bfloat16: 7, torch.float32: 23, torch.float16: 10}[found.dtype]
    truth = truth.double()
    _, exponent = torch.frexp(truth.abs().clamp_min(2.0**-100))
    return (found.double() - truth).abs() / torch.ldexp(torch.ones_like(truth), exponent - 1 - digits)


def compare(name, found, truth, most, absolute=0.0):
    """Fails where an error is above `most` units in the last place plus `absolute`; NaN always fails.

    Prints the worst error in units beyond `absolute`, and the error of all in relation to all.
    """
    truth = truth.double()
    error = (found.double() - truth).abs()
    unit = units(found, truth) * (1 - absolute / error.clamp_min(absolute + 1e-300))
    relative = (error.norm() / truth.norm().clamp_min(1e-300)).item()
    line = f"{name:62} worst {unit.max().item():7.3f} ulp, relative {relative:.2e}"
    wrong = int((~(unit <= most)).sum())
    if wrong:
        failures.append(name)
        print(f"FAIL {line} ({wrong} of {found.numel()} wrong)")
    else:
        print(f"ok   {line}")


def same_bits(name, one, other):
    raw = {2: torch.int16, 4: torch.int32}[one.element_size()]
    if not torch.equal(one.contiguous().view(raw), other.contiguous().view(raw)):
        failures.append(name)
        print(f"FAIL {name}: other bits")
    else:
        print(f"ok   {name}: same bits")


def seconds(run, launches=20, rounds=5):
    """Seconds of `run(i)`, the best of some replays of a graph of many; `i` tells which buffers to use."""
    run(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            run(i)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    best = float("inf")
    for _ in range(rounds):
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) / 1000 / launches)
    return best


def finish():
    """Ends the script with what failed."""
    print(f"{len(failures)} failures" + "".join(f"\n  {name}" for name in failures))
    sys.exit(1 if failures else 0)
