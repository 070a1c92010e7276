"""The kernels' library: compiled from its sources on first use, kept, and called.

Nothing is asked of a user: where there is no compiler, or a processor it cannot serve, torch does
the work as its files say, and `why_not` tells the reason. ATLAS_NATIVE=0 switches it off.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atlas_memory.memory.precision import rounds

HERE = Path(__file__).parent
SWITCH = "ATLAS_NATIVE"
FLAGS = [
    *("-std=c++17", "-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-march=native"),
    *("-fPIC", "-shared"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
]
THREADS = ["-fopenmp"]  # of the runtime that torch has loaded already: its threads, not more
NAMES = {torch.float32: "float", torch.float64: "double"}
PLAIN = (Tensor, torch.nn.Parameter)

_lock = threading.Lock()
_found: dict[torch.dtype, Any] = {}  # the library for each, or the reason why there is none


def _compiler() -> str:
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    raise OSError("no C++ compiler (c++, g++ or clang++) is on the PATH")


def _processor() -> str:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    return "".join(sorted(x for x in lines if x.startswith(("flags", "Features", "model name"))))


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "atlas_memory"


def _built(number: str) -> Path:
    """The library for these sources, this compiler and this processor, of one type of number."""
    compiler, flags = _compiler(), [*FLAGS, f"-DNUMBER={number}"]
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    sources = sorted([*HERE.glob("*.h"), *HERE.glob("*.cpp")])
    parts = [x.read_bytes() for x in sources]
    parts += [version, _processor().encode(), " ".join(flags).encode()]
    name = hashlib.sha256(b"\0".join(parts)).hexdigest()[:20] + ".so"
    try:
        return _made(compiler, flags, _folder() / name)
    except OSError:  # a home that cannot be written to
        return _made(compiler, flags, Path(tempfile.mkdtemp(prefix="atlas-memory-")) / name)


def _made(compiler: str, flags: list[str], target: Path) -> Path:
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, made = tempfile.mkstemp(suffix=".so", dir=target.parent)
    os.close(handle)
    if sys.stderr.isatty():
        print("compiling the memory's kernels for this processor, once ..", file=sys.stderr)
    try:
        source = str(HERE / "kernels.cpp")
        for threads in (THREADS, []):
            told = subprocess.run(
                [compiler, *flags, *threads, source, "-o", made], capture_output=True, text=True
            )
            if told.returncode == 0:
                os.replace(made, target)  # another process may have made the same one
                return target
        raise RuntimeError(f"{compiler} could not compile the kernels: {told.stderr[:400]}")
    finally:
        Path(made).unlink(missing_ok=True)


def _load(number: str) -> Any:
    if os.environ.get(SWITCH, "1") == "0":
        return f"{SWITCH}=0"
    try:
        return ctypes.CDLL(str(_built(number)))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return str(error)


def library(dtype: torch.dtype) -> Any:
    """The library for such numbers, or None."""
    if dtype not in _found:
        with _lock:
            if dtype not in _found:
                _found[dtype] = _load(NAMES[dtype])
    found = _found[dtype]
    return None if isinstance(found, str) else found


def why_not(dtype: torch.dtype = torch.float32) -> str | None:
    """Why torch does the work, in words; None where kernels do."""
    return None if library(dtype) is not None else str(_found[dtype])


def served(given: tuple[Any, ...]) -> bool:
    """Whether kernels can take these tensors: numbers on the processor that nobody watches.

    A tracer, a compiler and whoever counts operations is shown those of torch.
    """
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    dtype = torch.float32 if rounds() else None  # no kernel rounds others
    for x in given:
        if isinstance(x, Tensor):
            if dtype is None:
                dtype = x.dtype
            if not x.is_cpu or x.dtype is not dtype or type(x) not in PLAIN:
                return False
    return dtype in NAMES and library(dtype) is not None


@lru_cache(maxsize=256)
def _kernel(name: str, dtype: torch.dtype) -> Any:
    kernel = getattr(library(dtype), name)
    kernel.argtypes, kernel.restype = [ctypes.c_char_p], None
    return kernel


@lru_cache(maxsize=64)
def _packer(count: int) -> Any:
    return struct.Struct(f"{count}q").pack


ABSENT = (0, 0, 0, 0)


def _as_bits(x: float) -> int:
    bits: int = struct.unpack("q", struct.pack("d", x))[0]
    return bits


def call(name: str, sizes: tuple[int | float, ...], *tensors: Tensor | None) -> None:
    """Run a kernel over the rows of tensors [g, .., ..], the first of which is there."""
    first: Any = tensors[0]
    numbers = [torch.get_num_threads(), first.shape[0], int(rounds())]
    numbers += [x if isinstance(x, int) else _as_bits(x) for x in sizes]
    for x in tensors:
        numbers += ABSENT if x is None else (x.data_ptr(), *x.stride())
    _kernel(name, first.dtype)(_packer(len(numbers))(*numbers))


def side_by_side(x: Tensor) -> Tensor:
    """The same with the numbers of a row next to each other, as kernels walk over them."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
