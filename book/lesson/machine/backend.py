"""Where kernels run: on a GPU ('live'), on the host ('emulated'), or nowhere.

Both backends have the same face; chapters never ask which one they have:

    mark                                    'live' or 'emulated'
    describe()                              one line for a reader
    compile(source, defines=None)           -> Program; raises CompileError
    put(array), full(shape, value), get(array)
    free_bytes()                            memory that a path may use
    program.kernels                         {name: signatures.Kernel}
    program.template(name)                  whether a function template has this name
    program.launch(kernel, grid, block, args, shared=0)

A launch returns when the kernel has ended, and raises LaunchError if it failed.
"""

from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata

import numpy as np

from .. import colab
from ..errors import ArgumentError, LaunchError
from . import nvrtc


@dataclass(frozen=True)
class Probe:
    """What was found: a GPU that runs CuPy kernels, or why not, in a sentence."""

    gpu: bool
    reason: str
    versions: dict  # software and device, by name; what is known


def _cupy_packages():
    """Installed distributions that provide the module ``cupy``."""
    names = {(d.metadata["Name"] or "").lower() for d in metadata.distributions()}
    return sorted(n for n in names if n == "cupy" or n.startswith(("cupy-cuda", "cupy-rocm")))


@lru_cache(maxsize=1)
def probe():
    """Look for a GPU once: import CuPy, ask for a device, compile and run something trivial."""
    packages = _cupy_packages()
    versions = {"numpy": np.__version__}
    if len(packages) > 1:
        return Probe(False, f"two CuPy packages are installed ({', '.join(packages)}) and "
                     "overwrite each other: uninstall both, then install one", versions)
    try:
        cupy = nvrtc.import_cupy()
    except Exception as error:  # a half-installed CuPy raises more than ImportError
        if not packages:
            return Probe(False, _with_remedy("CuPy is not installed", "pip install cupy-cuda12x"),
                         versions)
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return Probe(False, f"CuPy is installed but does not import: {first}", versions)
    versions["cupy"] = cupy.__version__
    has_nvrtc, nvrtc_version = nvrtc.available()
    if has_nvrtc:
        versions["nvrtc"] = nvrtc_version
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        text = str(error)
        if "NoDevice" in text:
            return Probe(False, _with_remedy("the NVIDIA driver finds no GPU"), versions)
        if "InsufficientDriver" in text:
            return Probe(False, _with_remedy("there is no NVIDIA driver, or it is too old for this "
                                             "CuPy"), versions)
        return Probe(False, f"CUDA does not start: {text.strip().splitlines()[0]}", versions)
    if not count:
        return Probe(False, _with_remedy("the NVIDIA driver finds no GPU"), versions)
    if not has_nvrtc:
        return Probe(False, nvrtc_version, versions)
    try:
        from .gpu import GpuBackend

        versions.update(GpuBackend().versions())
        _try_out(GpuBackend())
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return Probe(False, f"a trivial kernel does not run on the GPU: {first}", versions)
    return Probe(True, "", versions)


def _with_remedy(reason, elsewhere=""):
    """A reason for no GPU, and what to do about it: in Colab the runtime has to change."""
    remedy = colab.SWITCH if colab.here() else elsewhere
    return f"{reason}; {remedy}" if remedy else reason


def _try_out(backend):
    from ..text.source import from_text

    text = 'extern "C" __global__ void probe(float* x) { x[threadIdx.x] = 2.0f * threadIdx.x; }\n'
    x = backend.full((32,), np.nan)
    backend.compile(from_text(text, "probe.cu")).launch("probe", (1,), (32,), (x,))
    if not np.array_equal(backend.get(x), 2.0 * np.arange(32)):
        raise LaunchError("it computes a wrong result")


def choose(kind=None):
    """The backend to run on, or None where there is neither a GPU nor a C++ compiler.

    ``kind``: 'live', 'emulated', or None for the best there is. Raises ArgumentError when the
    kind asked for is not to be had, with the reason.
    """
    if kind not in (None, "live", "emulated"):
        raise ArgumentError(f"backend {kind!r}: choose 'live', 'emulated' or None")
    if kind != "emulated":
        found = probe()
        if found.gpu:
            return _live()
        if kind == "live":
            raise ArgumentError(f"no live GPU: {found.reason}")
    from . import emulator

    ready, reason = emulator.available()
    if ready:
        return _emulated()
    if kind == "emulated":
        raise ArgumentError(f"no emulation: {reason}")
    return None


@lru_cache(maxsize=1)
def _live():
    from .gpu import GpuBackend

    return GpuBackend()


@lru_cache(maxsize=1)
def _emulated():
    from .emulator import HostBackend

    return HostBackend()
