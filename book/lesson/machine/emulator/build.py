"""One source, compiled for the host: a program that launches its kernels, and what is in it."""

import json
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

from ...errors import CompileError
from ...text.source import numbered
from .. import cache, nvrtc, refusals, signatures
from .toolchain import EMULATOR, folder, lock, nan_for_no_value, run, state

STATIC_SHARED = 48 * 1024  # bytes of a block without opting in
SHARED = 227 * 1024  # bytes of a block that opts in, on an H200

# Before the names of a kernel file's own symbols: a kernel may be called write or index, and the
# C library has functions of these names.
_OWN = "kernel."


class Build:
    """One source, compiled: the executable, its kernels and where shared arrays lie in it."""

    def __init__(self):
        self.lock = threading.Lock()
        self.executable = None

    def build(self, source, defines, tools, more=()):
        """Compile for the host and, where there is NVRTC, ask it too: both must take the source.

        What both took is kept for later processes: the program and what was read from it.
        ``more``: options of the C++ compiler.
        """
        with lock:
            state["count"] += 1
            place = folder() / str(state["count"])
        place.mkdir()
        macros = tuple(f"-D{name}={value}" for name, value in defines) + more
        key = cache.key(tools.key, *macros, str(nvrtc.available()), numbered(source))
        facts = place / "facts.json"
        if cache.fetch(key, place):
            self._read(json.loads(facts.read_text(encoding="utf-8")))
        else:
            self._compile(source, defines, macros, tools, place)
            facts.write_text(json.dumps(self._facts()), encoding="utf-8")
            cache.keep(key, [place / "kernel", facts])
        for name in self.kernels:
            if self.static_shared(name) > STATIC_SHARED:
                raise CompileError(
                    f"{source.label}: {name} declares {self.static_shared(name):,} bytes "
                    f"of __shared__ arrays; a block gets at most {STATIC_SHARED:,}")
        self.folder, self.executable = place, place / "kernel"

    def _facts(self):
        return {"kernels": [asdict(kernel) for kernel in self.kernels.values()],
                "shared": self.shared, "dynamic": self.dynamic, "bounds": self.bounds}

    def _read(self, facts):
        self.kernels = {k["name"]: signatures.Kernel(k["name"], k["symbol"], tuple(
            signatures.Param(**param) for param in k["params"])) for k in facts["kernels"]}
        self.shared = [tuple(array) for array in facts["shared"]]
        self.dynamic, self.bounds = tuple(facts["dynamic"]), facts["bounds"]

    def _compile(self, source, defines, macros, tools, place):
        with ThreadPoolExecutor(1) as beside:
            gpu = beside.submit(nvrtc.taken, source, dict(defines))
            (place / "kernel.cpp").write_text(numbered(source), encoding="utf-8")
            # The debug lines name the place, which differs from one process to the next.
            code, _, errors = run([tools.compiler, *tools.options, *macros,
                                    f"-fdebug-prefix-map={place}=/kernel", "-S", "kernel.cpp",
                                    "-o", "kernel.s"], place)
            if not code:
                assembly = (place / "kernel.s").read_bytes().decode(errors="surrogateescape")
                (place / "kernel.s").write_bytes(
                    nan_for_no_value(assembly).encode(errors="surrogateescape"))
                code, _, errors = run([tools.compiler, "-c", "kernel.s", "-o", "kernel.o"],
                                       place)
        if code:
            taken = gpu.exception() is None and gpu.result() is not None
            raise CompileError(refusals.compiler(source, errors, taken))
        if gpu.exception() is not None:
            raise CompileError(str(gpu.exception()).replace("not compile", "not compile for a GPU",
                                                            1))
        self._link(source, tools, place, gpu.result() or {})

    def _link(self, source, tools, place, on_gpu):
        """Link kernel.o with the emulator and with a table of its kernels.

        ``on_gpu``: the kernels that NVRTC sees; where it mangles a name, no launch would find it.
        """
        compiled = signatures.Elf(place / "kernel.o")
        self.kernels = {
            name: replace(kernel, symbol=on_gpu[name].symbol) if name in on_gpu else kernel
            for name, kernel in signatures.by_name(signatures.in_object(compiled)).items()}
        self.bounds = signatures.launch_bounds(compiled)
        own = {s.name for s in compiled.symbols if s.defined and s.visible}
        if "main" in own:
            raise CompileError(refusals.host_code(source, "main"))
        own = sorted(name for name in own if not name.startswith("_Z"))
        dynamic = sorted({s.name for s in compiled.symbols if s.kind == "shared"
                          and not s.defined})
        if objcopy := shutil.which("objcopy"):
            # __device__ variables lie together, so that each run of a launch finds them as they
            # were.
            # clang++ calls the C library to copy a struct; g++ has a hook before what it copies.
            library = ("memcpy", "memmove", "memset") if "clang" in tools.version else ()
            run([objcopy, *(f"--redefine-sym={name}={_OWN}{name}" for name in own),
                 *(f"--redefine-sym={name}=__emulator_{name}" for name in library),
                  "--rename-section=.data=__emulator_data", "--rename-section=.bss=__emulator_bss",
                  "--remove-section=.fini_array.*", "--remove-section=.rela.fini_array.*",
                  "kernel.o"], place)
        (place / "table.cpp").write_text("\n".join(self._table(dynamic)), encoding="utf-8")
        code, _, errors = run([tools.compiler, *tools.plain, "-include",
                                str(EMULATOR / "table.h"), "-no-pie", "table.cpp", "kernel.o",
                                str(tools.runtime), "-o", "kernel", "-lm"], place)
        if code:
            raise CompileError(refusals.linker(source, errors))
        self._read_shared(signatures.Elf(place / "kernel"))

    def _table(self, dynamic):
        """C++ lines: calls of the kernels by name, and memory for extern __shared__ arrays."""
        # All extern __shared__ arrays of a source are one piece of memory, as on a GPU.
        if dynamic:
            yield (f"__attribute__((aligned(1024))) thread_local unsigned char "
                   f'__emulator_dynamic_[{SHARED}] __asm__("__emulator_dynamic");')
        for name in dynamic:
            yield (f'__asm__(".globl {name}\\n.set {name}, __emulator_dynamic\\n'
                   f'.type {name}, %tls_object");')
        rows = []
        for i, kernel in enumerate(self.kernels.values()):
            types = [_C_TYPES.get(p.dtype) if not p.pointer else "void *" for p in kernel.params]
            if kernel.symbol != kernel.name or None in types:
                continue  # no launch gets as far as to look for it
            yield f'void kernel{i}({", ".join(types)}) __asm__("{_OWN}{kernel.symbol}");'
            args = ", ".join(f"*({t} *)a[{j}]" for j, t in enumerate(types))
            yield f"static void call{i}(void **a) {{ kernel{i}({args}); }}"
            rows.append(f'{{"{kernel.name}", call{i}}}, ')
        yield f'const __emulator::Kernel __emulator::kernels[] = {{{"".join(rows)}{{"", 0}}}};'
        yield f"const int __emulator::kernel_count = {len(rows)};\n"

    def _read_shared(self, program):
        """From the symbol table: name, function, offset and size of each __shared__ array."""
        self.shared, self.dynamic = [], (0, 0)
        for s in program.symbols:
            if s.kind != "shared":
                continue
            if s.name == "__emulator_dynamic":
                self.dynamic = (s.value, s.size)
            elif local := re.match(r"_ZZ(?:N?)(\d+)(\w+)", s.name):
                function = local[2][:int(local[1])]
                array = re.search(r"E(\d+)(\w+)$", s.name)
                name = array[2][:int(array[1])] if array else s.name
                self.shared.append((s.value, s.size, name, function))
            elif s.size:
                name = re.sub(r"^_ZL?\d*", "", s.name.removeprefix(_OWN))
                self.shared.append((s.value, s.size, name, ""))
        # The names of extern arrays are other names of the dynamic part.
        self.shared = [array for array in self.shared if array[:2] != self.dynamic]

    def static_shared(self, kernel):
        """Static shared bytes of a kernel: its own arrays and those of device functions."""
        return sum(size for _, size, _, function in self.shared
                   if function == kernel or function not in self.kernels)


# A type of C for each of NumPy's, of the same size and in the same registers.
_C_TYPES = {"bool": "bool", "int8": "signed char", "int16": "short", "int32": "int",
            "int64": "long long", "uint8": "unsigned char", "uint16": "unsigned short",
            "uint32": "unsigned", "uint64": "unsigned long long", "float32": "float",
            "float64": "double"}
