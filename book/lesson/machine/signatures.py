"""The kernels of a program and their parameters, as the compiler that built it wrote them down.

Compilers leave debug information in the DWARF format (versions 2 to 4, dwarfstd.org): g++ and
clang++ in an ELF object file, NVRTC with -G in its PTX. Both are read here by the same code, so
a kernel has the same name and the same parameters wherever it runs, however it was typed.
"""

import re
import struct
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..errors import CompileError


@dataclass(frozen=True)
class Param:
    """One parameter of a kernel.

    ``dtype`` is NumPy's name for a scalar, or for the elements behind a pointer (of a vector
    type such as float4: of its members); None where NumPy has no such type, as for a struct.
    """

    name: str
    type: str  # 'const float*', 'size_t', 'float', ...: for a reader
    pointer: bool
    read_only: bool  # a pointer to const
    dtype: str | None


@dataclass(frozen=True)
class Kernel:
    """A ``__global__`` function. ``symbol``: its name in the program, mangled if it is C++."""

    name: str
    symbol: str
    params: tuple[Param, ...]

    def declared(self):
        """Its parameters for a message: 'const float* a, float* b, int n'."""
        return ", ".join(f"{p.type} {p.name}".strip() for p in self.params)


# Numbers of the DWARF standard, and GNU's and MIPS's names for a linkage name.
_SUBPROGRAM, _PARAMETER, _MEMBER, _BASE = 0x2E, 0x05, 0x0D, 0x24
_POINTER, _TYPEDEF, _ARRAY, _STRUCT, _ENUM = 0x0F, 0x16, 0x01, 0x13, 0x04
_CONST, _QUALIFIERS = 0x26, (0x26, 0x35, 0x37)  # const, volatile, restrict
_REFERENCES = 0x10, 0x42
_NAME, _SIZE, _ENCODING, _TYPE, _LINKAGE, _OLD_LINKAGE = 0x03, 0x0B, 0x3E, 0x49, 0x6E, 0x2007
_ORIGIN, _SPECIFICATION, _DECLARATION = 0x31, 0x47, 0x3C
_KINDS = {2: "bool", 4: "float", 5: "int", 6: "int", 7: "uint", 8: "uint"}  # by DW_AT_encoding


def in_object(elf):
    """``[Kernel]`` of an Elf object file made with the emulator's ``cuda.h``."""
    # cuda.h gives __global__ functions, and nothing else, protected visibility.
    symbols = [s.name for s in elf.symbols if s.protected]
    return _kernels(_Dwarf(elf.section(".debug_info"), elf.section(".debug_abbrev"),
                           elf.section(".debug_str"), elf.relocations(".debug_info")), symbols)


def in_ptx(text):
    """``[Kernel]`` of PTX that NVRTC made with -G."""
    return _kernels(_Dwarf(_ptx_section(text, ".debug_info"), _ptx_section(text, ".debug_abbrev"),
                           _ptx_section(text, ".debug_str"), {}),
                    re.findall(r"\.entry\s+([\w$]+)", text))


def launch_bounds(elf):
    """``{symbol: threads}`` of the kernels of an Elf object file that have __launch_bounds__."""
    # cuda.h makes the bound a destructor's priority, and so the name of a section.
    return {symbol: int(name.rpartition(".")[2]) for name in elf.sections
            if re.fullmatch(r"\.fini_array\.\d+", name) for symbol in elf.targets(name)}


def by_name(kernels):
    """``{name: Kernel}``; of several with one name, that which a launch can find."""
    return {k.name: k for k in sorted(kernels, key=lambda k: k.symbol == k.name)}


def _kernels(dwarf, symbols):
    found = {}
    for die in dwarf.entries:
        if die.tag != _SUBPROGRAM or dwarf.get(die, _NAME) is None:
            continue
        name = dwarf.get(die, _NAME)
        symbol = dwarf.get(die, _LINKAGE) or dwarf.get(die, _OLD_LINKAGE) or name
        if symbol in symbols and not die.attributes.get(_DECLARATION):
            found.setdefault(symbol, Kernel(name, symbol, tuple(
                dwarf.param(child, i) for i, child in enumerate(
                    c for c in die.children if c.tag == _PARAMETER))))
    return [found[symbol] for symbol in symbols if symbol in found]  # in the source's order


@dataclass
class _Entry:
    """One entry of the debug information (a DIE)."""

    tag: int
    attributes: dict
    children: list


class _Dwarf:
    """The entries of a program's debug information.

    ``moved`` holds what a linker would still fill in: {offset in ``info``: value}.
    """

    def __init__(self, info, abbreviations, strings, moved):
        self.info, self.abbreviations = info, abbreviations
        self.strings, self.moved = strings, moved
        self.entries, self._at = [], {}
        start = 0
        while start < len(info):
            start = self._unit(start)

    def _unit(self, start):
        """Read the unit at ``start``; returns where the next one begins."""
        length, version = struct.unpack_from("<IH", self.info, start)
        if not 2 <= version <= 4:
            raise CompileError(f"the compiler writes debug information of DWARF version {version}; "
                               "versions 2 to 4 can be read")
        end, self.base, self.version = start + 4 + length, start, version
        self.address = self.info[start + 10]
        table = self._table(self.moved.get(start + 6, struct.unpack_from(
            "<I", self.info, start + 6)[0]))
        self.position = start + 11
        parents = [[]]
        while self.position < end:
            at = self.position
            code = self._uleb()
            if not code:
                parents.pop()
                if len(parents) <= 1:
                    break
                continue
            tag, has_children, form = table[code]
            entry = _Entry(tag, {name: self._value(kind) for name, kind in form}, [])
            self.entries.append(entry)
            self._at[at] = entry
            parents[-1].append(entry)
            if has_children:
                parents.append(entry.children)
        return end

    def _table(self, position):
        """{code: (tag, has children, [(attribute, form)])} of the abbreviations at ``position``."""
        read, table = _Bytes(self.abbreviations, position), {}
        while code := read.uleb():
            tag, has_children = read.uleb(), read.byte()
            pairs = []
            while any(pair := (read.uleb(), read.uleb())):
                pairs.append(pair)
            table[code] = tag, has_children, pairs
        return table

    def _uleb(self):
        read = _Bytes(self.info, self.position)
        value, self.position = read.uleb(), read.position
        return value

    def _fixed(self, size):
        value = int.from_bytes(self.info[self.position:self.position + size], "little")
        value = self.moved.get(self.position, value)
        self.position += size
        return value

    def _value(self, form):
        """The value of one attribute; entries that it refers to as offsets in ``info``."""
        if form in (0x0F, 0x0D, 0x15):  # udata; sdata, whose sign no attribute here needs; ref
            value = self._uleb()
            return self.base + value if form == 0x15 else value
        if form in (0x11, 0x12, 0x13, 0x14):  # ref1, ref2, ref4, ref8: from the unit's start
            return self.base + self._fixed(1 << form - 0x11)
        if form in (0x0B, 0x05, 0x06, 0x07):  # data1, data2, data4, data8
            return self._fixed({0x0B: 1, 0x05: 2, 0x06: 4, 0x07: 8}[form])
        if form in (0x08, 0x0E):  # string; strp: an offset in .debug_str
            data, start = (self.info, self.position) if form == 0x08 else (
                self.strings, self._fixed(4))
            end = data.index(b"\0", start)
            if form == 0x08:
                self.position = end + 1
            return data[start:end].decode(errors="replace")
        if form in (0x09, 0x18, 0x0A, 0x03, 0x04):  # block, exprloc, block1, block2, block4
            size = self._uleb() if form in (0x09, 0x18) else self._fixed(
                {0x0A: 1, 0x03: 2, 0x04: 4}[form])
            self.position += size
            return None
        if form == 0x10:  # ref_addr
            return self._fixed(self.address if self.version == 2 else 4)
        sizes = {0x01: self.address, 0x0C: 1, 0x17: 4, 0x19: 0, 0x20: 8}
        if form not in sizes:
            raise CompileError(f"the compiler writes debug information of DWARF form {form:#x}, "
                               "which cannot be read")
        value = self._fixed(sizes[form])  # addr, flag, sec_offset, flag_present, ref_sig8
        return value if form != 0x19 else 1

    def get(self, entry, attribute):
        """An attribute of an entry, or of the one that it continues; None where there is none."""
        while entry is not None:
            if attribute in entry.attributes:
                return entry.attributes[attribute]
            entry = self._at.get(entry.attributes.get(
                _SPECIFICATION, entry.attributes.get(_ORIGIN)))
        return None

    def param(self, entry, index):
        """The Param of a parameter's entry."""
        kind, _ = self._bare(self._type(entry))
        pointer = kind is not None and kind.tag == _POINTER
        inner, read_only = self._bare(self._type(kind), arrays=True) if pointer else (kind, False)
        whole = not pointer and inner is not None and inner.tag == _STRUCT  # no NumPy scalar
        name = self.get(entry, _NAME) or f"(argument {index + 1})"
        return Param(name, self._spelled(self._type(entry)), pointer, read_only,
                     None if whole else self._dtype(inner))

    def _type(self, entry):
        """The entry of a type that an entry has; None for void."""
        return self._at.get(self.get(entry, _TYPE))

    def _bare(self, kind, arrays=False):
        """(a type without its names and qualifiers, whether one of those was const)."""
        constant = False
        while kind is not None and (kind.tag in (*_QUALIFIERS, _TYPEDEF)
                                    or arrays and kind.tag == _ARRAY):
            constant |= kind.tag == _CONST
            kind = self._type(kind)
        return kind, constant

    def _spelled(self, kind):
        """A type for a reader: 'const float*'; const behind the last * says nothing to a caller."""
        while kind is not None and kind.tag in _QUALIFIERS:
            kind = self._type(kind)
        if kind is not None and kind.tag in _REFERENCES:
            return f"{self._spelled(self._type(kind))}&"
        if kind is None or kind.tag != _POINTER:
            return self._named(kind)
        inner = self._type(kind)
        constant = inner is not None and self._bare(inner)[1]
        while inner is not None and inner.tag in (*_QUALIFIERS, _ARRAY):
            inner = self._type(inner)
            constant |= inner is not None and inner.tag == _CONST
        return f"{'const ' if constant else ''}{self._spelled(inner)}*"

    def _named(self, kind):
        if kind is None:
            return "void"
        name = self.get(kind, _NAME)
        return _PLAIN.get(name, name) or "(a type without a name)"

    def _dtype(self, kind):
        """NumPy's name of a bare type, or None."""
        if kind is None:
            return None
        size = kind.attributes.get(_SIZE)
        if kind.tag == _BASE:
            name = _KINDS.get(kind.attributes.get(_ENCODING))
        elif kind.tag == _ENUM:
            name = "int"
        elif kind.tag == _STRUCT:  # float4 is read and written as four floats
            members = {self._dtype(self._bare(self._type(child), arrays=True)[0])
                       for child in kind.children if child.tag == _MEMBER}
            return members.pop() if len(members) == 1 else None
        else:
            return None
        name = name and (name if name == "bool" else f"{name}{8 * size}")
        return name if name in _NUMPY else None


_PLAIN = {"unsigned int": "unsigned", "long int": "long", "long unsigned int": "unsigned long",
          "long long int": "long long", "long long unsigned int": "unsigned long long",
          "short int": "short", "short unsigned int": "unsigned short"}  # as g++ spells them
_NUMPY = {np.dtype(t).name for t in (np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8,
                                     np.uint16, np.uint32, np.uint64, np.float32, np.float64)}


class _Bytes:
    """A position in bytes, with DWARF's numbers of variable length."""

    def __init__(self, data, position):
        self.data, self.position = data, position

    def byte(self):
        self.position += 1
        return self.data[self.position - 1]

    def uleb(self):
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value


def _ptx_section(text, name):
    """The bytes of a section that PTX holds as .b8, .b16, .b32 and .b64 numbers; labels are 0."""
    found = re.search(r"\.section\s+" + re.escape(name) + r"\s*\{(.*?)\}", text, re.S)
    data = bytearray()
    for size, values in re.findall(r"\.b(\d+)\s+([^\n]*)", found[1] if found else ""):
        for value in values.split(","):
            number = int(value) if re.fullmatch(r"\s*-?\d+\s*", value) else 0
            data += (number % 2**int(size)).to_bytes(int(size) // 8, "little")
    return bytes(data)


@dataclass(frozen=True)
class Symbol:
    """One line of an ELF file's symbol table."""

    name: str
    value: int
    size: int
    kind: str  # 'function', 'shared' (thread-local: what __shared__ becomes), 'other'
    defined: bool
    visible: bool  # to other files
    protected: bool


class Elf:
    """A little-endian ELF64 file: object or program (man 5 elf)."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        if self.data[:6] != b"\x7fELF\x02\x01":
            raise CompileError("the compiler makes no little-endian ELF64 files, which alone can "
                               "be read")
        start, = struct.unpack_from("<Q", self.data, 40)
        size, count, names = struct.unpack_from("<HHH", self.data, 58)
        self._headers = [struct.unpack_from("<IIQQQQIIQQ", self.data, start + i * size)
                         for i in range(count)]
        self._names = {self._string(self._headers[names], header[0]): header
                       for header in self._headers}

    def _string(self, table, offset):
        start = table[4] + offset
        return self.data[start:self.data.index(b"\0", start)].decode(errors="replace")

    def _content(self, header):
        return self.data[header[4]:header[4] + header[5]] if header else b""

    def section(self, name):
        """The bytes of a section, b'' if there is none."""
        return self._content(self._names.get(name))

    @cached_property
    def symbols(self):
        """``[Symbol]`` of the whole table."""
        table = self._names.get(".symtab")
        if table is None:
            return []
        kinds = {2: "function", 6: "shared"}
        return [Symbol(self._string(self._headers[table[6]], name), value, size,
                       kinds.get(info & 15, "other"), bool(section), info >> 4 in (1, 2),
                       other & 3 == 3)
                for name, info, other, section, value, size
                in struct.iter_unpack("<IBBHQQ", self._content(table))]

    def targets(self, section):
        """``[name]`` of the symbols whose addresses a linker would still write into a section."""
        return [self.symbols[info >> 32].name for _, info, _
                in struct.iter_unpack("<QQq", self.section(f".rela{section}"))]

    @property
    def sections(self):
        """The names of all sections."""
        return tuple(self._names)

    def relocations(self, section):
        """``{offset: value}`` of what a linker would still write into a section."""
        return {offset: self.symbols[info >> 32].value + addend
                for offset, info, addend
                in struct.iter_unpack("<QQq", self.section(f".rela{section}"))}
