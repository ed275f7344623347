"""Why a mutant may pass every check: a reason for each class of survivors, or it is a hole.

A reason stands here in a sentence and says which changes it is for, as regular expressions over
``source operator: line => changed line``. It counts only for what has passed every check.
"""

import re
from dataclasses import dataclass

EQUAL, OUTSIDE = "equal", "outside the domain"
# What a verdict is about: the largest |score| of the cases, and the largest N of the tables.
DOMAIN = "finite inputs, |score| up to 11,100, N up to 4,096"


@dataclass(frozen=True)
class Reason:
    """Why some mutants pass. ``shows``: of what is outside the domain, an input that tells."""

    name: str
    why: str
    where: tuple
    shows: str = ""

    @property
    def verdict(self):
        return OUTSIDE if self.shows else EQUAL

    def fits(self, mutant):
        said = f"{mutant.name} {mutant.operator}: {mutant.code} => {mutant.changed}"
        return any(re.search(pattern, said) for pattern in self.where)


REASONS = (
    Reason("pad", "Another pad, or a larger array: the numbers lie elsewhere in shared memory, and "
           "bank conflicts change, but no value does.",
           (r"__shared__ float kTile\[B\w+\]\[(BLK|D)", r"constexpr int [QKPV]S = ",
            r"__shared__ float sizes\[THREADS / 32\]; => .*THREADS \* 32")),
    Reason("reduction", "Another way through the same lanes: steps of 17, 8, 4, 2 and 1 reach all "
           "32 lanes, too.", (r"int offset = 16.* => .*int offset = 17",)),
    Reason("lane 0", "Only what lane 0 gets is used, and it gets the same.",
           (r"^(materialised|ladder/halves) function: .* => .*__shfl_down_sync",)),
    Reason("any lane", "Every lane, or thread, has the same number: any of them may write it.",
           (r"^(materialised|ladder/halves) \w+: if \((lane|threadIdx\.x) == 0\)",
            r"^materialised \w+: const int lane = .* => .*(threadIdx\.y % 32|% 31|% 33)")),
    Reason("first thread", "Only a warp's first thread uses it, and for that it is the same.",
           (r"^materialised constant: .* => .*warp = threadIdx\.x / 31;",
            r"^ladder/halves constant: .* => sizes\[threadIdx\.x / 31\]")),
    Reason("shift", "The same number is added to all scores of a row, and softmax does not change.",
           (r"constant: float (sum|s) = 0\.0f; => .*1\.0f",)),
    Reason("first rescale", "The first tile's rescale is exp(-inf) = 0: what stood there before is "
           "gone, if it is a number.",
           (r"constant: (l|o0|o1)\[r\] = 0\.0f; => .* = 1\.0f;",
            r"^ladder/merge constant: float4 sum = ")),
    Reason("order", "The two statements touch nothing of each other's.",
           (r"^materialised order: ([qp]Tile\[y\]|p\[row \* n \+ j\] = w;)",
            r"order: ([mlo][01]?\[r\] = |[kv]Tile\[i / D\]|a0 \+= |o0 \+= |[qk] \+= head)",
            r"order: o\[row \* D \+ lane\]", r"order: weigh\(s, l, pTile.* => awaitCopies",
            r"order: fragment\(a, .* => fragment\(b, ", r"order: to\[3 \* BN\].* => vec4\(vTo",
            r"order: sum\.\w = ", r"order: vec4\((b|x|pTo \+ colOf\(j\) \* PS)\) = ",
            r"order: loadK\(.* => load[QV]\(", r"order: x\[2\]\[i\] = .* => x\[3\]\[i\]",
            r"order: columns<rowOf>\(a, .* => columns<colOf>\(b, ",
            r"order: copyAsync\(stage \+ line")),
    Reason("not called", "Nobody calls the function.",
           (r"^ladder/15_transposed constant: .* colOf",)),
    Reason("scale", "The next power of two does as well: what is scaled by it stays in the range "
           "of FP16.", (r"^ladder/2\d_\w+ constant: return min\(max\(141 .* => .* 125\)",)),
    Reason("sum", "Two parts of one sum change places.", (r"arguments: write\(o, .*row0",)),
    Reason("order of products", "The products of a step come in another order, each of them once.",
           (r"const int (j|at) = .*(TM|side) - 1 - x %",
            r"order: s\[i\]\[j\] \+= a\[i\]", r"order: mma8\(")),
    Reason("lazy", "When it rescales is its own affair: any m gives the same quotient, as long as "
           "no weight overflows.", (r"SLACK", r"if \(__any_sync")),
    Reason("one store more", "The last tile is stored once more, and nobody reads it.",
           (r"^ladder/25_turing \w+: if \(tile \+ 1 < last\) => ",)),
    Reason("edge", "What stands beyond the edge meets a factor of 0, or is not written.",
           (r"^materialised constant: [qkpv]Tile.*: 0\.0f; => .*: 1\.0f;",
            r"^materialised comparison: for \(size_t j0 = 0; j0 < n.* => .*j0 <= n")),
    Reason("always true", "A condition that is always true: x goes to 15 in blocks of 16 x 16, and "
           "no thread has more keys or columns than rows.",
           (r"^materialised barrier: .*if \(threadIdx\.x < 32\) __syncthreads",
            r"const int side = N < TM \? N : TM.* => const int side = N( <= TM|,)")),
    Reason("whole maximum", "A maximum that is off by less than 1 gives the same quotient.",
           (r"type: .*float m(New)? = .* => .*int m", r"type: float top\[TM\]"),
           "scores beyond 2,147,483,647, which no int holds"),
    Reason("no minus infinity", "No score is below -3e38, so the first tile replaces it.",
           (r"=> .*= -3e38f",), "products that overflow: a first tile of scores of minus infinity "
           "gives NaN, and with -3e38 it is passed over"),
    Reason("many tiles", "8 bits count 256 tiles of 64 keys.",
           (r"^ladder/halves type: const size_t tile = ",),
           "N = 16,448, whose last tile is the 257th"),
    Reason("int", "An int counts to 2,147,483,647, and no index gets there.",
           (r"type: .*\(size_t\).* => .*\(int\)",), "N = 2,147,483,648"),
)


@dataclass(frozen=True)
class Closed:
    """A hole that was found, and what closed it: in words, and the name of the Check."""

    words: str
    name: str
    line: str
    changed: str
    closed_by: str
    check: str


CLOSED = (
    Closed("a wait for copies is missing, which the host makes at once", "ladder/12_lazy",
           "awaitCopies();", ";", "copies that arrive only when they are waited for",
           "periodic, N = 192, late"),
    Closed("a maximum starts with no value, and fmaxf drops the NaN", "materialised",
           "float m = __int_as_float(0xff800000);", "float m;",
           "a large number, in place of NaN, where a variable has no first value",
           "periodic, N = 64, filled"),
    Closed("a guard lets one row more through, where N is a multiple of the tile", "materialised",
           "if (row < n && col < n)", "if (row <= n && col < n)",
           "an N that no tile divides, and more blocks than are needed",
           "periodic, N = 40, ragged"),
    Closed("another row in place of the last one is there when N is 96", "ladder/04_heads",
           "const size_t row = row0 + i / D < n ? row0 + i / D : n - 1;",
           "const size_t row = row0 + i / D < n ? row0 + i / D : row0 - 1;",
           "N = 32, where there is no row before", "periodic, N = 32, ragged"),
    Closed("sizes of the grid change places, which were equal", "ladder/10_split",
           "const size_t part = ((size_t)blockIdx.z * gridDim.y + blockIdx.y) * n;",
           "const size_t part = ((size_t)blockIdx.z * gridDim.x + blockIdx.y) * n;",
           "3 splits, where there are 2 heads and 2 blocks of queries",
           "random, N = 192, 2 heads, 3 splits"),
    Closed("a maximum that starts with a score of a thread's other row", "ladder/23_three",
           "top[i][h] = s[0][i][0][2 * h];", "top[i][h] = s[0][i][0][2 * i];",
           "rows 1, 2, 4, 8, .. apart that differ in level by 600", "peaks, N = 128, levels"),
    Closed("a first value that is added to, and nothing was there", "ladder/23_three",
           "m[i][0] = m[i][1] = __int_as_float(0xff800000);",
           "m[i][0] += m[i][1] = __int_as_float(0xff800000);",
           "what the compiler says of variables without a first value",
           "periodic, N = 128, 2 splits, warned"),
    Closed("the size of a number counts without its sign", "ladder/halves",
           "fmaxf(sizeOf(x[i].z), sizeOf(x[i].w)));", "fmaxf(sizeOf(x[i].z), (x[i].w)));",
           "a lone large number below 0 in each tile", "random, N = 256, lone"),
    Closed("an index of 8 bits", "ladder/23_three",
           "const size_t at = row0 + i * 16 + h * 8 + lane / 4;",
           "const unsigned char at = row0 + i * 16 + h * 8 + lane / 4;",
           "more than 256 keys also for tensor cores", "periodic, N = 320"),
    Closed("minus infinity chooses a tile's scale", "ladder/halves",
           "__device__ float sizeOf(float x) { return fabsf(x) < __int_as_float(0x7f800000) ? "
           "fabsf(x) : 0.0f; }",
           "__device__ float sizeOf(float x) { return (x) < __int_as_float(0x7f800000) ? "
           "fabsf(x) : 0.0f; }", "infinities of both signs in V", "random, N = 128, nan"),
    Closed("a power of two that no float32 holds", "ladder/halves",
           "return min(max(141 - (__float_as_int(size) >> 23), -126), 126);",
           "return (max(141 - (__float_as_int(size) >> 23), -126));",
           "values of V near 1e-36", "random, N = 128, tiny"),
)


def reason(mutant):
    """The Reason for which a surviving Mutation may pass; None: it is a hole."""
    return next((r for r in REASONS if r.fits(mutant)), None)
