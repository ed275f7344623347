"""The CUDA toolkit's compiler: a second build of each kernel, to be gated like the first."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from ..errors import CompileError
from . import nvrtc


def available():
    """The path of nvcc, or None."""
    return shutil.which("nvcc")


def compile_cubin(source, arch, defines=None):
    """Compile ``source`` (a Source) for ``arch``: (cubin bytes, log), as nvrtc.compile_cubin."""
    with tempfile.TemporaryDirectory(prefix="lesson-nvcc-") as folder:
        text, cubin = Path(folder, "kernel.cu"), Path(folder, "kernel.cubin")
        text.write_text(source.text, encoding="utf-8")
        run = subprocess.run(
            [available(), *nvrtc.OPTIONS, f"-arch={nvrtc.specific(source, arch)}", "-cubin",
             "-Xptxas", "-v", *(f"-D{name}={value}" for name, value in (defines or {}).items()),
             "-o", cubin, text], capture_output=True, text=True, timeout=600)
        if run.returncode:
            raise CompileError(f"nvcc refuses {source.label}:\n{run.stderr.strip()}")
        return cubin.read_bytes(), run.stderr
