"""Small variants of one source, compiled in a fraction of the time: for mutation testing.

A variant has the kernels of its original, as the emulator has compiled that. So it needs no debug
information and no NVRTC, and less of the optimiser. What a launch checks is the same.
"""

import hashlib
import re
import shutil

from ...errors import CompileError
from ...text.source import numbered
from .. import refusals, signatures
from .backend import HostBackend, HostProgram
from .build import _OWN, STATIC_SHARED, Build
from .toolchain import EMULATOR, folder, lock, nan_for_no_value, run, state, toolchain

_LEFT_OUT = {"-O2", "-g", "-gdwarf-4", "-gz=none"}
_CODE = (".text", ".rela.text", ".rodata")  # what sections begin with that hold what is run


def used_unwritten(source):
    """What the C++ compiler says of local variables of a Source that are read before a write.

    It knows more than a run shows: it computes with what stands in such a variable beforehand.
    """
    tools = toolchain()
    options = [o for o in tools.options if o not in (*_LEFT_OUT, "-w")
               and not o.startswith(("-fsanitize", "-ftrivial-auto-var-init"))]
    _, _, said = run([tools.compiler, *options, "-O2", "-Wuninitialized", "-Wmaybe-uninitialized",
                      "-x", "c++", "-c", "-", "-o", "/dev/null"], folder(), numbered(source))
    return re.findall(r"warning: (.*) \[-W\S*uninitialized", said)


class VariantBackend(HostBackend):
    """The emulated backend, where sources that ``originals`` names are variants.

    originals: ``{label of a source: the Source that it is a variant of}``. large: whether local
    variables without a first value are large numbers, in place of NaN, which a maximum drops.
    """

    def __init__(self, originals, large=False, **more):
        super().__init__(**more)
        self._originals, self._byte = originals, 126 if large else -1

    def compile(self, source, defines=None):
        """A HostProgram; raises CompileError where the C++ compiler refuses the source."""
        if source.label not in self._originals:
            return super().compile(source, defines)
        with lock:
            key = ("variant", source.label, self._byte)
            last = state.get(key)
            if last is None or last.digest != source.digest:
                if last is not None:  # one at a time of each label: there are thousands
                    state.pop(key).remove()
                original = super().compile(self._originals[source.label])
                state[key] = Variant(source, original._built, self._byte)
            return HostProgram(self, source, state[key])


class Variant(Build):
    """One variant, compiled. ``code``: SHA-256 of its machine code, in hexadecimal."""

    def __init__(self, source, original, byte):
        super().__init__()
        self.digest, self.kernels = source.digest, original.kernels
        tools = toolchain()
        with lock:
            state["count"] += 1
            self.folder = folder() / str(state["count"])
        self.folder.mkdir()
        self._compile(source, tools, byte)
        self.executable = self.folder / "kernel"
        self._read_shared(signatures.Elf(self.executable))
        for name in self.kernels:
            if self.static_shared(name) > STATIC_SHARED:
                self.remove()
                raise CompileError(f"{name} declares {self.static_shared(name):,} bytes of "
                                   f"__shared__ arrays; a block gets at most {STATIC_SHARED:,}")

    def _compile(self, source, tools, byte):
        place = self.folder
        options = [o for o in tools.options if o not in _LEFT_OUT]
        (place / "kernel.cpp").write_text(numbered(source), encoding="utf-8")
        self._run([tools.compiler, *options, "-O1", "-S", "kernel.cpp", "-o", "kernel.s"], source)
        assembly = (place / "kernel.s").read_bytes().decode(errors="surrogateescape")
        (place / "kernel.s").write_bytes(
            nan_for_no_value(assembly, byte).encode(errors="surrogateescape"))
        self._run([tools.compiler, "-c", "kernel.s", "-o", "kernel.o"], source)
        compiled = signatures.Elf(place / "kernel.o")
        self.bounds = signatures.launch_bounds(compiled)
        total = hashlib.sha256()
        for name in sorted(s for s in compiled.sections if s.startswith(_CODE)):
            total.update(f"{name}\0".encode() + compiled.section(name) + b"\0")
            if name.startswith(".text"):  # a section calls by number, whatever the name is
                total.update("\0".join(compiled.targets(name)).encode())
        for symbol in compiled.symbols:  # how large a shared array is stands nowhere else
            if symbol.kind == "shared":
                total.update(f"{symbol.name}\0{symbol.size}\0".encode())
        self.code = total.hexdigest()
        own = sorted(s.name for s in compiled.symbols
                     if s.defined and s.visible and not s.name.startswith("_Z"))
        dynamic = sorted({s.name for s in compiled.symbols if s.kind == "shared"
                          and not s.defined})
        self._run(["objcopy", *(f"--redefine-sym={name}={_OWN}{name}" for name in own),
                   "--rename-section=.data=__emulator_data",
                   "--rename-section=.bss=__emulator_bss", "--remove-section=.fini_array.*",
                   "--remove-section=.rela.fini_array.*", "kernel.o"], source)
        self._run([tools.compiler, "-no-pie", str(self._kernel_table(tools, dynamic)), "kernel.o",
                   str(tools.runtime), "-o", "kernel", "-lm"], source)

    def _kernel_table(self, tools, dynamic):
        """The object file with the table of the kernels: compiled once."""
        text = "\n".join(self._table(dynamic))
        key = ("table", text)
        with lock:
            if key not in state:
                state["count"] += 1
                place = folder() / str(state["count"])
                place.mkdir()
                (place / "table.cpp").write_text(text, encoding="utf-8")
                run([tools.compiler, *tools.plain, "-include", str(EMULATOR / "table.h"), "-c",
                     "table.cpp", "-o", "table.o"], place)
                state[key] = place / "table.o"
            return state[key]

    def _run(self, command, source):
        code, _, errors = run(command, self.folder)
        if code:
            self.remove()
            raise CompileError(refusals.first_error(errors))

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)
