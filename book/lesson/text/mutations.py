"""Small changes of a kernel's text, all of a kind: what mutation testing asks of a gate.

A mutation operator (Jia and Harman 2011, doi:10.1109/TSE.2010.62) makes one small change wherever
it applies: another operator, one more, one less, a statement gone. The text is cut into tokens, and
brackets, statements, operands and declarations are found as far as the operators need them; what
the compiler then refuses is no mutant.

Not changed: comments, ``static_assert``, the heads of functions, directives, and what stands under
an ``#if``, which is a GPU's own instruction or what stands for it on the host.
"""

import difflib
import hashlib
import re
from dataclasses import dataclass, field

from . import source

_TOKEN = re.compile(r"""(?P<number>0[xX][\da-fA-F]+[uUlL]*|\d+\.\d*(?:[eE][+-]?\d+)?[fF]?
    |\d+[uUlL]*)|(?P<name>[A-Za-z_]\w*)|(?P<text>"[^"\n]*"|'[^'\n]*')
    |(?P<sign><<=|>>=|\.\.\.|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[^\s\w])""", re.X)
_UNDER_IF = re.compile(r"^[ \t]*#[ \t]*if.*?^[ \t]*#[ \t]*endif[^\n]*$", re.M | re.S)
_DIRECTIVE = re.compile(r"^[ \t]*#[^\n]*$", re.M)
_ASSERTED = re.compile(r"\bstatic_assert\s*\(.*?\)\s*;", re.S)

_TYPES = {"int", "unsigned", "size_t", "float", "bool", "float2", "float4", "uint4", "double"}
_WORDS = _TYPES | {"const", "constexpr", "extern", "return", "if", "else", "for", "while", "void",
                   "template", "true", "false", "__shared__", "__device__", "__global__",
                   "__align__", "__launch_bounds__", "typename"}
_BINDS = {"*": 10, "/": 10, "%": 10, "+": 9, "-": 9, "<<": 8, ">>": 8, "<": 7, "<=": 7, ">": 7,
          ">=": 7, "==": 6, "!=": 6, "&": 5, "^": 4, "|": 3, "&&": 2, "||": 1}
_STOPS = {"?", ":", ",", ";", "=", "+=", "-=", "*=", "/=", "%=", "|=", "&=", "^=", "<<=", ">>="}

# Operator -> what takes its place.
_ARITHMETIC = {"+": "-", "-": "+", "*": "+", "/": "*", "%": "/", "^": "+", "&": "|", "|": "&",
               "<<": ">>", ">>": "<<"}
_COMPARE = {"<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"),
            "==": ("!=",), "!=": ("==",)}
_LOGIC = {"&&": "||", "||": "&&"}
_ASSIGN = {"+=": ("-=", "="), "-=": ("+=", "="), "*=": ("=",), "/=": ("*=",), "|=": ("=",),
           "&=": ("=",), "=": ("+=",)}
_CALLED = {"fmaxf": "fminf", "max": "min", "min": "max", "warpMax": "warpSum", "warpSum": "warpMax",
           "rowMax": "rowSum", "rowSum": "rowMax", "expf": "exp2f", "exp2Fast": "expf",
           "__shfl_xor_sync": "__shfl_down_sync", "__any_sync": "__all_sync"}
_NEXT = {"x": "y", "y": "z", "z": "w", "w": "x"}
_MINUS_INFINITY = "__int_as_float(0xff800000)"
_STARTS = ("0.0f", "1e-30f", "-100.0f", "-3e38f")  # in place of minus infinity
_CONDITIONS = ("threadIdx.x < 32", "threadIdx.x % 2 == 0")  # a barrier must stand under none


@dataclass(frozen=True)
class Token:
    kind: str  # 'number', 'name', 'text', 'sign'
    word: str
    start: int
    end: int


@dataclass(frozen=True)
class Mutation:
    """One change of the source ``name``, whose text is ``base``.

    ``edits`` are (start, end, new) in that text, in order. ``key``: 12 hexadecimal digits of a
    SHA-256 over the source's code and the change, by which a record knows the mutant.
    """

    name: str
    operator: str
    edits: tuple
    key: str
    base: str = field(repr=False)

    @property
    def text(self):
        """The whole text with the change."""
        text = self.base
        for start, end, new in reversed(self.edits):
            text = text[:start] + new + text[end:]
        return text

    @property
    def source(self):
        """The changed text as a Source."""
        return source.from_text(self.text, f"mutant of {self.name}.cu")

    @property
    def line(self):
        """The number of the first line that changes."""
        return self.base.count("\n", 0, self.edits[0][0]) + 1

    @property
    def code(self):
        """The first line that changes, as it is, without its comment."""
        return source.bare(self.base.split("\n")[self.line - 1]).strip()

    @property
    def changed(self):
        """The same line of the mutant."""
        return source.bare(self.text.split("\n")[self.line - 1]).strip()

    def diff(self):
        """The change as a unified diff, with two lines around it."""
        old, new = self.base.split("\n"), self.text.split("\n")
        return "\n".join(difflib.unified_diff(old, new, f"{self.name}.cu", "mutant", lineterm="",
                                              n=2))


def mutations(name):
    """All Mutations of the kernel source called ``name``, in the order of its text.

    Two operators that make the same text make one mutation, the first one's.
    """
    base = source.read(name)
    code = _Code(base)
    stem, found = hashlib.sha256(f"{name}\0{source.code(base)}".encode()), {}
    for operator, *edits in code.changes():
        edits = tuple(sorted(edits))
        total = stem.copy()  # by tokens, so that comments may change
        total.update(repr([(code.number[start], end - start, new)
                           for start, end, new in edits]).encode())
        mutation = Mutation(name, operator, edits, total.hexdigest()[:12], base)
        if mutation.text != base:
            found.setdefault(mutation.text, mutation)
    return sorted(found.values(), key=lambda m: m.edits)


def own(name, before):
    """The mutations in those lines of ``name`` that the source called ``before`` does not have."""
    old, new = (source.blanked(source.read(x)).split("\n") for x in (before, name))
    old, new = ([" ".join(line.split()) for line in lines] for lines in (old, new))
    mine = set()
    for kind, _, _, start, end in difflib.SequenceMatcher(None, old, new, False).get_opcodes():
        if kind != "equal":
            mine.update(range(start + 1, end + 1))
    return [m for m in mutations(name) if m.line in mine]


class _Code:
    """A source's tokens, and what is known of them."""

    def __init__(self, text):
        self.text = text
        code = source.blanked(text)
        for pattern in (_UNDER_IF, _DIRECTIVE, _ASSERTED):
            code = pattern.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), code)
        self.tokens = [Token(m.lastgroup, m[0], m.start(), m.end())
                       for m in _TOKEN.finditer(code)]
        self.words = [t.word for t in self.tokens]
        # By where a token begins, and by where it ends, which is where something may be put in.
        self.number = {t.end: i for i, t in enumerate(self.tokens)} | {
            t.start: i for i, t in enumerate(self.tokens)}
        self.pair, open_ = {}, []
        for i, word in enumerate(self.words):
            if word in "([{":
                open_.append(i)
            elif word in ")]}":
                start = open_.pop()
                self.pair[start], self.pair[i] = i, start
        self.bodies = self._bodies()
        self.inside = {i for start, end in self.bodies for i in range(start + 1, end)}
        self.constants = self._constants()
        self.statements = list(self._simple_statements())
        self.first_values, self.dimensions = set(), set()  # tokens = and [ of declarations
        self.declared = list(self._declared())

    # What the tokens are

    def _bodies(self):
        """(open, close) of the bodies of functions."""
        found, i = [], 0
        while i < len(self.words):
            if self.words[i] == "{":
                if self.words[i - 1] == ")":
                    found.append((i, self.pair[i]))
                if self.words[i - 1] != '"C"':
                    i = self.pair[i]
            i += 1
        return found

    def _constants(self):
        """Tokens of the values of constants outside of functions."""
        found, i = set(), 0
        while i < len(self.words):
            if self.words[i] == "constexpr" and i not in self.inside:
                start = self.words.index("=", i)
                i = self.words.index(";", i)
                found.update(range(start + 1, i))
            i += 1
        return found

    def word(self, i):
        return self.words[i] if 0 <= i < len(self.words) else ""

    def is_cast(self, i):
        """Whether token ``i`` closes a cast, such as ``(const float4*)``."""
        if self.word(i) != ")":
            return False
        inside = self.words[self.pair[i] + 1 : i]
        return bool(inside) and all(w in _TYPES | {"const", "*"} for w in inside)

    def is_binary(self, i):
        """Whether token ``i`` is an operator between two operands, and no part of a type."""
        before, after = self.word(i - 1), self.word(i + 1)
        if before in _TYPES or after in (")", ",") or self.is_cast(i - 1):
            return False
        return (before in (")", "]") or self.tokens[i - 1].kind in ("number", "name")
                ) and before not in ("return", "else")

    def operands(self, i):
        """((first, last) token of the left operand, and of the right one) of a binary operator."""
        binds, left, right = _BINDS[self.words[i]], i - 1, i + 1
        while True:  # to the left, as far as what binds at least as strongly
            word = self.words[left]
            if word in ")]":
                left = self.pair[left]
            before = self.word(left - 1)
            if before in ("(", "[", "{", "}", "return") or before in _STOPS or (
                    before in _BINDS and self.is_binary(left - 1) and _BINDS[before] < binds):
                break
            left -= 1
        while True:
            if self.words[right] in "([":
                right = self.pair[right]
            after = self.word(right + 1)
            if after in (")", "]", "}", "{") or after in _STOPS or (
                    after in _BINDS and self.is_binary(right + 1) and _BINDS[after] <= binds):
                break
            right += 1
        return (left, i - 1), (i + 1, right)

    def of(self, first, last):
        """The text of some tokens."""
        return self.text[self.tokens[first].start : self.tokens[last].end]

    def _simple_statements(self):
        """(first, last) tokens of the simple statements in functions, ; included."""
        for start, end in self.bodies:
            i = start + 1
            while i < end:
                word = self.words[i]
                if word in ("for", "if", "while"):
                    i = self.pair[i + 1] + 1
                elif word in "{}" or word == "else":
                    i += 1
                else:
                    last = i
                    while self.words[last] != ";":
                        last = self.pair[last] + 1 if self.words[last] in "([{" else last + 1
                    yield i, last
                    i = last + 1

    def is_declaration(self, first):
        return self.words[first] in _TYPES | {"const", "constexpr", "extern", "__shared__"}

    def arguments(self, i):
        """(first, last) of each argument of the call whose ( is token ``i``."""
        found, first, at, end = [], i + 1, i + 1, self.pair[i]
        while at <= end:
            if at == end or self.words[at] == ",":
                if first < at:
                    found.append((first, at - 1))
                first = at + 1
            at = self.pair[at] + 1 if self.words[at] in "([{" and at != end else at + 1
        return found

    def _declared(self):
        """(name, kind, first token at which it is known, last) of variables and parameters."""
        for start, end in self.bodies:
            opened = self.pair[start - 1]
            for first, last in self.arguments(opened):
                kind = self.words[first:last]
                if "[" in kind:  # an array by reference: its dimensions are a part of its kind
                    at = next(k for k in range(first, last)
                              if self.tokens[k].kind == "name" and self.words[k] not in _WORDS)
                    kind = [w for k, w in enumerate(self.words[first : last + 1], first) if k != at]
                    yield self.words[at], " ".join(kind), start, end
                else:
                    yield self.words[last], " ".join(kind).replace("const ", "", 1), start, end
        for first, last, until in self._declarations():
            at, head = first, []
            while self.words[at] in _TYPES | {"const", "*", "&", "extern", "__shared__",
                                              "constexpr", "__align__"}:
                if self.words[at] == "__align__":
                    at = self.pair[at + 1]
                elif self.words[at] in _TYPES | {"*"}:
                    head.append(self.words[at])
                at += 1
            while at < last:
                name, kind = self.words[at], list(head)
                at += 1
                while self.words[at] == "[":
                    kind.append(self.of(at, self.pair[at]))
                    self.dimensions.add(at)
                    at = self.pair[at] + 1
                if self.words[at] == "=":
                    self.first_values.add(at)
                while at < last and self.words[at] != ",":
                    at = self.pair[at] + 1 if self.words[at] in "([{" else at + 1
                yield name, " ".join(kind), at, until
                at += 1

    def _declarations(self):
        """(first, last, end of its scope) of the declarations in functions."""
        blocks = [(i, self.pair[i]) for i in self.inside | {s for s, _ in self.bodies}
                  if self.words[i] == "{"]

        def scope(i):
            return min((end for start, end in blocks if start < i < end), default=i)

        for first, last in self.statements:
            if self.is_declaration(first):
                yield first, last, scope(first)
        for i in sorted(self.inside):
            if self.words[i] == "for" and self.is_declaration(i + 2):
                after = self.pair[i + 1] + 1
                yield i + 2, self.words.index(";", i), self._end(after)

    def _end(self, first):
        """The last token of the statement that begins with token ``first``."""
        if self.words[first] == "{":
            return self.pair[first]
        if self.words[first] in ("for", "if", "while"):
            return self._end(self.pair[first + 1] + 1)
        while self.words[first] != ";":
            first = self.pair[first] + 1 if self.words[first] in "([{" else first + 1
        return first

    # What is changed

    def changes(self):
        """(operator, edit, ..) of every change."""
        for i in sorted(self.inside | self.constants):
            yield from self._at(i)
        yield from self._statements()

    def put(self, operator, i, new, last=None):
        """The change that puts ``new`` in place of the tokens from ``i`` to ``last``."""
        return operator, (self.tokens[i].start, self.tokens[i if last is None else last].end, new)

    def _at(self, i):
        token, word = self.tokens[i], self.words[i]
        if token.kind == "number":
            yield from self._number(i)
        elif token.kind == "name":
            yield from self._name(i)
        elif word in _BINDS and self.is_binary(i):
            yield from self._binary(i)
        elif word in _ASSIGN and i in self.inside and i not in self.first_values:
            for new in _ASSIGN[word]:
                yield self.put("assignment", i, new)
        elif word == "?":
            yield from self._choice(i)
        elif word == "[" and i in self.inside and i not in self.dimensions:
            end = self.pair[i]
            yield self.put("index", i, f"[{self.of(i + 1, end - 1)} + 1]", end)
            if self.word(end + 1) == "[" and self.word(self.pair[end + 1] + 1) != "[":
                yield self.put("index", i, self.of(end + 1, self.pair[end + 1])
                               + self.of(i, end), self.pair[end + 1])
        elif word == "(" and self.is_cast(self.pair[i]) and self.words[i + 1] == "size_t":
            yield self.put("type", i, "(int)", self.pair[i])

    def _binary(self, i):
        word = self.words[i]
        if word in _ARITHMETIC:
            yield self.put("arithmetic", i, _ARITHMETIC[word])
        for new in _COMPARE.get(word, ()):
            yield self.put("comparison", i, new)
        if word in _LOGIC:
            yield self.put("condition", i, _LOGIC[word])
        if word in ("+", "*", "-", "%", "&&", "||"):
            (first, before), (after, last) = self.operands(i)
            yield self.put("operand", first, self.of(first, before), last)
            if word in ("+", "&&", "||"):
                yield self.put("operand", first, self.of(after, last), last)

    def _choice(self, i):
        """a of ``c ? a : b``, and b."""
        colon = i
        while self.words[colon] != ":":
            colon = self.pair[colon] + 1 if self.words[colon] in "([" else colon + 1
        first, last = i - 1, colon + 1
        while self.word(first - 1) not in ("(", "[", "{", ";", ",", "return") and self.word(
                first - 1) not in _ASSIGN:
            first = self.pair[first] if self.words[first] in ")]" else first
            if self.word(first - 1) in ("(", "[", "{", ";", ",", "return") or self.word(
                    first - 1) in _ASSIGN:
                break
            first -= 1
        while self.words[last] not in (")", "]", ";", ","):
            last = self.pair[last] + 1 if self.words[last] in "([" else last + 1
        yield self.put("condition", first, self.of(i + 1, colon - 1), last - 1)
        yield self.put("condition", first, self.of(colon + 1, last - 1), last - 1)

    def _number(self, i):
        word = self.words[i]
        if word.lower().startswith("0x"):
            if word.lower().startswith("0xffffffff"):
                yield self.put("mask", i, "0xffffu")
                yield self.put("mask", i, "0x7fffffffu")
            return
        if "." in word or word.endswith("f"):
            value = float(word.rstrip("fF"))
            news = {0.0: ("1.0f",), 1.0: ("2.0f", "0.0f")}.get(value, (f"{value + 1:.9g}f",))
            for new in news:
                yield self.put("constant", i, new if "." in new else new.replace("f", ".0f"))
            return
        number, unit = re.fullmatch(r"(\d+)(\w*)", word).groups()
        yield self.put("constant", i, f"{int(number) + 1}{unit}")
        if int(number):
            yield self.put("constant", i, f"{int(number) - 1}{unit}")

    def _name(self, i):
        word = self.words[i]
        if self.word(i - 1) == ".":
            if word in _NEXT:
                grid = self.word(i - 2) in ("threadIdx", "blockIdx", "gridDim", "blockDim")
                new = "y" if grid and word != "y" else "x" if grid else _NEXT[word]
                yield self.put("component", i, new)
            return
        if self.word(i + 1) == "(" and word not in _WORDS:
            yield from self._call(i)
            return
        if word == "FULL":
            yield self.put("mask", i, "0xffffu")
        if word == "float" and self.word(i + 1) != "(" and i in self.inside and self.word(
                i + 1) not in ("*", "&", ")"):
            yield self.put("type", i, "int")
        if word == "size_t" and i in self.inside and self.word(i + 1) != ")":
            yield self.put("type", i, "unsigned char")
        yield from self._variable(i)

    def _call(self, i):
        word, parts = self.words[i], self.arguments(i + 1)
        end = self.pair[i + 1]
        if word in _CALLED:
            yield self.put("function", i, _CALLED[word])
        if word.startswith("__syncthreads"):
            yield self.put("barrier", i, "__syncwarp")
            for condition in _CONDITIONS:
                yield self.put("barrier", i, f"if ({condition}) __syncthreads")
        if self.of(i, end) == _MINUS_INFINITY:
            for new in _STARTS:
                yield self.put("initial value", i, new, end)
            return
        statement = self.word(end + 1) == ";" and self.word(i - 1) in ("{", "}", ";", ")", "else")
        if not statement and word not in ("__launch_bounds__", "make_float4", "make_float2"):
            if len(parts) == 1 or word in ("fmaxf", "min", "max"):
                for first, last in parts:
                    yield self.put("call", i, f"({self.of(first, last)})", end)
            elif word.startswith("__shfl"):
                yield self.put("call", i, self.of(*parts[1]), end)
        for (a, b), (c, d) in zip(parts, parts[1:]):
            if word not in ("fmaxf", "min", "max") and self.of(a, b) != self.of(c, d):
                yield ("arguments", (self.tokens[a].start, self.tokens[b].end, self.of(c, d)),
                       (self.tokens[c].start, self.tokens[d].end, self.of(a, b)))

    def _variable(self, i):
        """Another variable of the same kind in its place: the one declared before it, or after."""
        if i not in self.inside or self.word(i - 1) in (*_TYPES, "const", "&"):
            return
        known = [(name, kind) for name, kind, start, end in self.declared if start < i < end]
        mine = [k for k, (name, _) in enumerate(known) if name == self.words[i]]
        if not mine:
            return
        kind = known[mine[-1]][1]
        same = list(dict.fromkeys(name for name, its in known if its == kind))
        at = same.index(self.words[i])
        for new in {same[at - 1], same[(at + 1) % len(same)]} - {self.words[i]}:
            yield self.put("variable", i, new)

    def _statements(self):
        found = self.statements
        for k, (first, last) in enumerate(found):
            if self.is_declaration(first):
                yield from self._first_value(first, last)
                continue
            if self.words[first] == "return":
                continue
            yield self.put("statement", first, ";", last)
            if k + 1 < len(found) and found[k + 1][0] == last + 1 and not self.is_declaration(
                    last + 1) and self.words[last + 1] != "return":
                a, b = self.of(first, last), self.of(*found[k + 1])
                yield ("order", (self.tokens[first].start, self.tokens[last].end, b),
                       (self.tokens[last + 1].start, self.tokens[found[k + 1][1]].end, a))
        for i in sorted(self.inside):
            if self.words[i] == "if":
                end = self.pair[i + 1]
                yield self.put("condition", i + 2, f"!({self.of(i + 2, end - 1)})", end - 1)
                yield self.put("condition", i + 2, "true", end - 1)

    def _first_value(self, first, last):
        """A declaration without its first value, where it is not const."""
        if self.words[first] in ("const", "constexpr"):
            return
        at = first
        while at < last:
            if self.words[at] == "=":
                end = at
                while self.words[end] not in (",", ";"):
                    end = self.pair[end] + 1 if self.words[end] in "([{" else end + 1
                yield ("initial value", (self.tokens[at - 1].end, self.tokens[end - 1].end, ""))
                at = end
            at = self.pair[at] + 1 if self.words[at] in "([{" else at + 1
