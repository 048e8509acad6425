#!/usr/bin/env python3
"""Builds smoke.sm_90.cubin from smoke.cu with NVRTC, on a machine without GPU or toolkit.

    pip download --no-deps 'nvidia-cuda-nvrtc-cu12==12.9.86' && unzip the wheel
    python3 build.py FOLDER_WITH_libnvrtc.so.12
"""

import ctypes
import pathlib
import sys

here = pathlib.Path(__file__).parent
folder = pathlib.Path(sys.argv[1])
ctypes.CDLL(str(folder / "libnvrtc-builtins.so.12.9"), mode=ctypes.RTLD_GLOBAL)
nvrtc = ctypes.CDLL(str(folder / "libnvrtc.so.12"))

source = (here / "smoke.cu").read_bytes()
options = [b"--gpu-architecture=sm_90", b"--std=c++17"]
program = ctypes.c_void_p()
assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"smoke.cu", 0, None, None) == 0
status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
size = ctypes.c_size_t()
nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
log = ctypes.create_string_buffer(size.value)
nvrtc.nvrtcGetProgramLog(program, log)
print(log.value.decode(), end="")
if status:
    sys.exit(f"nvrtc: error {status}")
assert nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
cubin = ctypes.create_string_buffer(size.value)
assert nvrtc.nvrtcGetCUBIN(program, cubin) == 0
(here / "smoke.sm_90.cubin").write_bytes(cubin.raw)
print(f"smoke.sm_90.cubin: {size.value} bytes")
