#!/usr/bin/env python3
"""Builds the CUDA kernels ahead of time, and checks that what is committed is what the sources give.

    tools/kernels.py build [NAME ...]   compile the sources that changed (or those named) and note it
    tools/kernels.py check              recompile all, compare every byte; exit 1, one line a difference
    tools/kernels.py table [NAME ...]   registers, spills and shared memory of each kernel
    tools/kernels.py plain ARCH FOLDER  compile all but Hopper's own into FOLDER/ARCH, for a card that is here: with
                                        PLIMSOLL_CUBINS=FOLDER the checks run on it the code of other cards

Sources are crates/cuda-kernels/kernels/*.cu; a cubin goes to crates/cuda-kernels/cubin/ARCH/NAME.cubin for
each architecture, and cubin/MANIFEST says what it was made from. A source whose text has a line
`// Only for: sm_90a` (names separated by spaces) is built for those architectures alone.

The compiler is NVRTC from its PyPI wheel, pinned by hash and put into tools/.nvrtc, or the library that
`--nvrtc PATH` names. Neither a GPU nor a CUDA toolkit is needed. Python's standard library alone is used.
Targets are `sm_XX`, never `compute_XX`: only then does the assembler run and say what a kernel needs.
"""

import argparse
import ctypes
import fcntl
import hashlib
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "crates/cuda-kernels/kernels"
CUBINS = ROOT / "crates/cuda-kernels/cubin"
VENV = ROOT / "tools/.nvrtc"

ARCHS = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"]
VERSION = "12.9.86"
WHEEL = (
    f"nvidia-cuda-nvrtc-cu12=={VERSION} "
    # Linux, x86-64.
    "--hash=sha256:210cf05005a447e29214e9ce50851e83fc5f4358df8b453155d5e1918094dcb4\n"
)
OPTIONS = ["--std=c++17", "--ptxas-options=-v"]
HEAD = "# Made by tools/kernels.py: what the cubins were made from and what they need."


class Failure(Exception):
    """Something that the user has to see, without a traceback."""


# --- the compiler -------------------------------------------------------------------------------------


def installed_nvrtc():
    """The pinned library, installed on first use."""
    found = sorted(VENV.glob("lib/python*/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"))
    if found and (VENV / VERSION).exists():
        return found[0]
    print(f"installing NVRTC {VERSION} into {VENV.relative_to(ROOT)}", file=sys.stderr)
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
            requirements.write(WHEEL)
            requirements.flush()
            pip = [VENV / "bin/python", "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
            subprocess.run([*pip, "--require-hashes", "-r", requirements.name], check=True)
    except subprocess.CalledProcessError as error:
        raise Failure(f"NVRTC cannot be installed: {error}") from error
    (VENV / VERSION).touch()
    return next(VENV.glob("lib/python*/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"))


class Nvrtc:
    """NVRTC through ctypes."""

    def __init__(self, path):
        # The builtins are looked up by name: loaded beforehand they are found wherever they lie.
        for builtins in sorted(Path(path).parent.glob("libnvrtc-builtins.so.*")):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self.lib = ctypes.CDLL(str(path))
        self.lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        found = f"{major.value}.{minor.value}"
        if not VERSION.startswith(f"{found}."):
            raise Failure(f"{path} is NVRTC {found}; the cubins are made with {VERSION}")

    def call(self, name, *args):
        status = getattr(self.lib, name)(*args)
        if status != 0:
            raise Failure(f"{name}: {self.lib.nvrtcGetErrorString(status).decode()}")

    def text(self, program, what):
        """The bytes behind a pair of `nvrtcGet...Size` and `nvrtcGet...`."""
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    def compile(self, name, arch, headers):
        """Cubin and log of a source; headers are handed over by name, so no path gets into the result."""
        contents = [text.encode() for text in headers.values()]
        names = [header.encode() for header in headers]
        array = ctypes.c_char_p * len(headers)
        program = ctypes.c_void_p()
        source = (KERNELS / f"{name}.cu").read_bytes()
        self.call(
            "nvrtcCreateProgram", ctypes.byref(program), source, f"{name}.cu".encode(),
            len(headers), array(*contents), array(*names),
        )  # fmt: skip
        options = [option.encode() for option in [f"--gpu-architecture={arch}", *OPTIONS]]
        status = self.lib.nvrtcCompileProgram(
            program, len(options), (ctypes.c_char_p * len(options))(*options)
        )
        log = self.text(program, "ProgramLog").rstrip(b"\0").decode()
        if status != 0:
            raise Failure(f"{name}.cu for {arch}:\n{log}")
        cubin = self.text(program, "CUBIN")
        self.call("nvrtcDestroyProgram", ctypes.byref(program))
        return cubin, log


# --- sources and what they give -----------------------------------------------------------------------


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def headers_of(text, found=None):
    """The headers of the folder that a text includes, by name, each once."""
    found = {} if found is None else found
    for name in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE):
        if name not in found:
            found[name] = (KERNELS / name).read_text()
            headers_of(found[name], found)
    return found


class Source:
    """A source file: its hash covers all that decides the cubin but the compiler."""

    def __init__(self, name):
        self.name = name
        path = KERNELS / f"{name}.cu"
        if not path.exists():
            raise Failure(f"{path.relative_to(ROOT)} does not exist")
        text = path.read_text()
        self.headers = headers_of(text)
        only = re.search(r"^// Only for: (.+)$", text, re.MULTILINE)
        self.archs = only.group(1).split() if only else ARCHS
        if unknown := set(self.archs) - set(ARCHS):
            raise Failure(f"{name}.cu is for {' '.join(sorted(unknown))}, which is not built")
        parts = [*OPTIONS, *self.archs, text, *sorted(self.headers), *(self.headers[h] for h in sorted(self.headers))]
        self.hash = sha256("\0".join(parts).encode())


def sources(names=()):
    return [Source(name) for name in (names or sorted(path.stem for path in KERNELS.glob("*.cu")))]


USES = re.compile(
    r"Compiling entry function '(\w+)'.*?"
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads.*?"
    r"Used (\d+) registers([^\n]*)",
    re.DOTALL,
)


def uses(log):
    """`(kernel, registers, spilled bytes, stack bytes, static shared bytes)` of each kernel in a log."""
    for kernel, stack, stores, loads, registers, rest in USES.findall(log):
        shared = re.search(r"(\d+) bytes smem", rest)
        yield kernel, int(registers), int(stores) + int(loads), int(stack), int(shared.group(1)) if shared else 0


def compile_one(job):
    """In a process of its own: `(cubin, lines of the manifest)`, or the message of a failure."""
    path, source, arch = job
    try:
        cubin, log = Nvrtc(path).compile(source.name, arch, source.headers)
    except Failure as error:
        return str(error)
    lines = [f"cubin {source.name} {arch} {sha256(cubin)}"]
    for kernel, registers, spilled, stack, shared in sorted(uses(log)):
        lines.append(
            f"kernel {source.name} {arch} {kernel} registers {registers} spill_bytes {spilled}"
            f" stack_bytes {stack} shared_bytes {shared}"
        )
    return cubin, lines


def compile_all(path, wanted):
    """Yields `(source, arch, cubin, lines)` of every wanted source."""
    jobs = [(path, source, arch) for source in wanted for arch in source.archs]
    with multiprocessing.Pool(os.cpu_count()) as pool:
        failures = []
        for (_, source, arch), result in zip(jobs, pool.imap(compile_one, jobs)):
            if isinstance(result, str):
                failures.append(result)
            else:
                yield source, arch, *result
    if failures:
        raise Failure("\n".join(failures))


# --- the manifest -------------------------------------------------------------------------------------


def read_manifest():
    path = CUBINS / "MANIFEST"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if not line.startswith("#")]


def head_lines():
    return [f"compiler nvrtc {VERSION}", f"compiler options {' '.join(OPTIONS)}"]


def sort_key(line):
    """Head first, then by source: its hash, its cubins, its kernels."""
    words = line.split()
    if words[0] == "compiler":
        return (0, line)
    kinds = ["source", "cubin", "kernel"]
    rest = [str(ARCHS.index(words[2])), *words[3:]] if words[0] != "source" else []
    return (1, words[1], kinds.index(words[0]), rest)


def doubles(lines):
    """Kernels whose name two sources have: a program loads all of them."""
    owners = {}
    for line in lines:
        words = line.split()
        if words[0] == "kernel":
            owners.setdefault(words[3], set()).add(words[1])
    return [f"kernel {kernel} is in {' and '.join(sorted(names))}" for kernel, names in owners.items() if len(names) > 1]


def cubin_path(name, arch):
    return CUBINS / arch / f"{name}.cubin"


def build(path, names):
    """Compiles what changed; a lock keeps two builds at once from losing each other's lines."""
    before = read_manifest()
    wanted = sources(names)
    if not names:
        wanted = [
            source
            for source in wanted
            if f"source {source.name} {source.hash}" not in before
            or not all(cubin_path(source.name, arch).exists() for arch in source.archs)
        ]
    made = {source.name: [f"source {source.name} {source.hash}"] for source in wanted}
    for source, arch, cubin, lines in compile_all(path, wanted):
        target = cubin_path(source.name, arch)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(cubin)
        made[source.name] += lines
    CUBINS.mkdir(parents=True, exist_ok=True)
    lock = os.open(CUBINS, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = {file.stem for file in KERNELS.glob("*.cu")}
        kept = [
            line
            for line in read_manifest()
            if not line.startswith("compiler") and line.split()[1] in known and line.split()[1] not in made
        ]
        lines = sorted([*head_lines(), *kept, *(line for all_of in made.values() for line in all_of)], key=sort_key)
        (CUBINS / "MANIFEST").write_text("\n".join([HEAD, *lines, ""]))
        for file in CUBINS.glob("*/*.cubin"):
            if file.stem not in known:
                file.unlink()
    finally:
        os.close(lock)
    if found := doubles(lines):
        raise Failure("\n".join(found))
    print(f"built {' '.join(sorted(made)) or 'nothing: all is as the manifest says'}")
    show([line for line in lines if line.startswith("kernel") and line.split()[1] in made and spills(line)])


def check(path):
    """Recompiles everything and compares; returns the differences."""
    differences = []
    wanted = sources()
    expected = head_lines() + [f"source {source.name} {source.hash}" for source in wanted]
    files = {CUBINS / "MANIFEST"}
    for source, arch, cubin, lines in compile_all(path, wanted):
        target = cubin_path(source.name, arch)
        files.add(target)
        expected += lines
        where = target.relative_to(ROOT)
        if not target.exists():
            differences.append(f"{where}: missing")
        elif target.read_bytes() != cubin:
            differences.append(f"{where}: not what its source gives")
    for file in sorted(CUBINS.glob("*/*")):
        if file not in files:
            differences.append(f"{file.relative_to(ROOT)}: has no source")
    found = read_manifest()
    if found != sorted(expected, key=sort_key):
        for line in sorted(set(expected) - set(found)):
            differences.append(f"MANIFEST lacks: {line}")
        for line in sorted(set(found) - set(expected)):
            differences.append(f"MANIFEST has: {line}")
        if set(expected) == set(found):
            differences.append("MANIFEST: the order of its lines")
    differences += doubles(expected)
    return differences, len(wanted), len(files) - 1


def plain(path, arch, folder):
    """What cards without kernels of their own run, for an architecture that may have some: `sm_90` is not `sm_90a`."""
    wanted = [source for source in sources() if any(not name.endswith("a") for name in source.archs)]
    for source in wanted:
        source.archs = [arch]
    for source, _, cubin, _ in compile_all(path, wanted):
        target = Path(folder) / arch / f"{source.name}.cubin"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(cubin)
    print(f"built {len(wanted)} sources for {arch} in {folder}")


def spills(line):
    words = line.split()
    return int(words[words.index("spill_bytes") + 1]) > 0


def show(lines):
    """A table of kernels by architecture: registers, and bytes of spills where there are any."""
    table = {}
    for line in lines:
        _, source, arch, kernel, _, registers, _, spilled, _, stack, _, shared = line.split()
        cell = registers + (f"+{spilled}s" if spilled != "0" else "") + (f"+{stack}f" if stack != "0" else "")
        table.setdefault((source, kernel, shared), {})[arch] = cell
    if not table:
        return
    print(f"{'kernel':40}{'shared':>8}" + "".join(f"{arch:>10}" for arch in ARCHS))
    for (_, kernel, shared), cells in sorted(table.items()):
        print(f"{kernel:40}{shared:>8}" + "".join(f"{cells.get(arch, '-'):>10}" for arch in ARCHS))
    print("registers a thread; +Ns: N bytes of spills, +Nf: N bytes of stack frame")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["build", "check", "table", "plain"])
    parser.add_argument("names", nargs="*", metavar="NAME", help="sources, without the ending; ARCH and FOLDER of plain")
    parser.add_argument("--nvrtc", metavar="PATH", help="libnvrtc.so.12, instead of the pinned wheel's")
    arguments = parser.parse_args()
    if arguments.command == "plain":
        if len(arguments.names) != 2:
            raise Failure("plain takes an architecture and a folder")
        plain(Path(arguments.nvrtc) if arguments.nvrtc else installed_nvrtc(), *arguments.names)
        return 0
    names = [Path(name).stem for name in arguments.names]
    if arguments.command == "table":
        lines = [line for line in read_manifest() if line.startswith("kernel")]
        show([line for line in lines if not names or line.split()[1] in names])
        return 0
    path = Path(arguments.nvrtc) if arguments.nvrtc else installed_nvrtc()
    if arguments.command == "build":
        build(path, names)
        return 0
    if names:
        raise Failure("check takes no names: it checks everything")
    differences, source_count, cubin_count = check(path)
    if differences:
        print("\n".join(differences))
        print(f"{len(differences)} differences: run tools/kernels.py build and commit what it writes")
        return 1
    print(f"{source_count} sources give the {cubin_count} cubins that are committed")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as error:
        print(error, file=sys.stderr)
        sys.exit(2)
