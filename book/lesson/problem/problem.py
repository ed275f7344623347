"""What is computed: one description that inputs, reference, gate, bytes and launches share.

Meanings follow PyTorch's ``scaled_dot_product_attention``; where lengths differ, the causal mask is
aligned to the bottom right, as FlashAttention's is since 2.1.
"""

import math
import numbers
from dataclasses import dataclass, fields

import numpy as np

from ..errors import ArgumentError

D = 64  # head width of the lesson's kernels


@dataclass(frozen=True)
class Problem:
    """Attention of ``queries`` query rows over ``keys`` keys in each head of each batch entry.

    heads: of Q; a multiple of ``kv_heads``, those of K and V (None: as many). d: head width.
    causal: query i sees the keys 0 .. i + keys - queries. key_lengths: for each batch entry the
    number of keys that are no padding. scale: of the scores, 1 / sqrt(d) where it is None.
    Raises ArgumentError for what is no problem, naming the field.
    """

    queries: int
    keys: int
    batch: int = 1
    heads: int = 1
    kv_heads: int | None = None
    d: int = D
    causal: bool = False
    key_lengths: tuple | None = None
    scale: float | None = None

    def __post_init__(self):
        def put(name, value):
            object.__setattr__(self, name, value)

        if self.kv_heads is None:
            put("kv_heads", self.heads)
        for name in ("queries", "keys", "batch", "heads", "kv_heads", "d"):
            put(name, _whole(name, getattr(self, name)))
        if self.heads % self.kv_heads:
            raise ArgumentError(f"kv_heads = {self.kv_heads}: must divide heads = {self.heads}")
        if self.key_lengths is not None:
            put("key_lengths", self._lengths())
        if self.scale is None:
            put("scale", self.d**-0.5)
        elif not (isinstance(self.scale, numbers.Real) and 0 < self.scale < math.inf):
            raise ArgumentError(f"scale = {self.scale!r}: needs a number above 0")
        put("scale", float(self.scale))

    def _lengths(self):
        """``key_lengths`` as ints."""
        each = f"one number for each of {self.batch} batch entries"
        if not hasattr(self.key_lengths, "__len__"):
            raise ArgumentError(f"key_lengths = {self.key_lengths!r}: needs {each}")
        if len(self.key_lengths) != self.batch:
            raise ArgumentError(f"key_lengths has {len(self.key_lengths)} numbers, needs {each}")
        try:
            return tuple(_whole("key_lengths", x, 0, self.keys) for x in self.key_lengths)
        except ArgumentError:
            raise ArgumentError(f"key_lengths = {self.key_lengths}: each lies between 0 and "
                                f"keys = {self.keys}") from None

    def __str__(self):
        if self.queries == self.keys:
            parts = [f"N = {self.keys}"]
        else:
            parts = [f"{self.queries} queries, {self.keys} keys"]
        parts += [f"{self.batch} batch entries"] if self.batch > 1 else []
        if self.heads > 1:
            shared = f" on {self.kv_heads}" if self.kv_heads != self.heads else ""
            parts.append(f"{self.heads} heads{shared}")
        parts += [f"d = {self.d}"] if self.d != D else []
        parts += ["causal"] if self.causal else []
        parts += [f"key lengths {self.key_lengths}"] if self.key_lengths is not None else []
        parts += [f"scale {self.scale:g}"] if self.scale != self.d**-0.5 else []
        return ", ".join(parts)

    @property
    def n(self):
        """Keys; of a square problem also queries, the N of the chapters."""
        return self.keys

    @property
    def q_shape(self):
        """Shape of Q and of the output: (queries, d), (heads, queries, d) or with batch before."""
        return self._shape(self.heads, self.queries)

    @property
    def kv_shape(self):
        """Shape of K and V: (keys, d), (kv_heads, keys, d) or with batch before."""
        return self._shape(self.kv_heads, self.keys)

    def _shape(self, heads, rows):
        if self.batch > 1:
            return self.batch, heads, rows, self.d
        return (heads, rows, self.d) if self.heads > 1 else (rows, self.d)

    def seen(self):
        """How many keys each query sees: integers (batch, queries). They are the first ones."""
        ends = np.full((self.batch, self.queries), self.keys)
        if self.causal:
            ends = np.minimum(ends, np.arange(self.queries) + 1 + self.keys - self.queries)
        if self.key_lengths is not None:
            ends = np.minimum(ends, np.array(self.key_lengths)[:, None])
        return np.maximum(ends, 0)

    @property
    def operations(self):
        """Multiplications and additions of the two products, over the keys that are seen."""
        return 4 * self.d * self.heads * int(self.seen().sum())

    @property
    def tensor_bytes(self):
        """Bytes of Q, K, V and O together."""
        return 4 * 2 * int(np.prod(self.q_shape) + np.prod(self.kv_shape))

    @property
    def score_matrix_bytes(self):
        """Bytes of the score matrices, float32, one a head."""
        return 4 * self.batch * self.heads * self.queries * self.keys

    def given(self):
        """``{field: value}`` of what is not the default: a Problem's short form in a file."""
        default = {"batch": 1, "heads": 1, "kv_heads": self.heads, "d": D, "causal": False,
                   "key_lengths": None, "scale": self.d**-0.5}
        return {f.name: getattr(self, f.name) for f in fields(self)
                if f.name not in default or getattr(self, f.name) != default[f.name]}


def _whole(name, value, least=1, most=math.inf):
    """``value`` as an int from ``least`` to ``most``."""
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        if value % 1 == 0 and least <= value <= most:
            return int(value)
    raise ArgumentError(f"{name} = {value!r}: needs a whole number from {least}")


def of(problem):
    """A Problem: itself, or one head of N keys and N queries where a number N is given."""
    if isinstance(problem, Problem):
        return problem
    try:
        return Problem(problem, problem)
    except ArgumentError:
        raise ArgumentError(f"n = {problem!r}: N must be a whole number from 1, or a Problem"
                            ) from None


@dataclass(frozen=True)
class Handles:
    """The part of Problem that a kernel handles. ``refuse`` is the one place that says no."""

    who: str
    multiple: int = 64  # of queries and keys
    why: str = "the query rows of a block"
    heads: bool = False  # more than one
    more_heads: str = "give one head at a time"

    def refuse(self, problem):
        """Raise ArgumentError for what this kernel cannot do: field, value and what can be done."""
        p, least = problem, self.multiple
        if p.d != D:
            raise ArgumentError(f"d = {p.d}: {self.who} needs d = {D}, since a lane owns 2 of the "
                                f"{D} output columns")
        if p.causal:
            raise ArgumentError(f"causal = True: {self.who} has no mask; set causal=False")
        if p.key_lengths is not None:
            raise ArgumentError(f"key_lengths = {p.key_lengths}: {self.who} reads every key; cut "
                                "K and V to their length")
        if p.scale != p.d**-0.5:
            raise ArgumentError(f"scale = {p.scale:g}: {self.who} takes 1/sqrt(d); multiply Q by "
                                f"{p.scale * p.d**0.5:g} instead")
        if p.batch > 1:
            raise ArgumentError(f"batch = {p.batch}: {self.who} takes one batch entry; "
                                "give one at a time")
        if p.heads > 1 and not self.heads:
            raise ArgumentError(f"heads = {p.heads}: {self.who} takes one head; {self.more_heads}")
        if p.kv_heads != p.heads:
            raise ArgumentError(f"kv_heads = {p.kv_heads}: {self.who} needs as many as heads = "
                                f"{p.heads}; repeat K and V")
        if p.queries != p.keys:
            raise ArgumentError(f"queries = {p.queries}, keys = {p.keys}: {self.who} needs as many "
                                "queries as keys")
        if p.n % least:
            raise ArgumentError(f"n = {p.n}: N must be a positive multiple of {least}, {self.why} "
                                f"(the nearest is {max(least, round(p.n / least) * least)})")
