"""What the CUDA kernel itself does on one query row: m, l and o, read out at every tile.

The kernel is the reader's own, as edited in this session. Before it is compiled, CAPTURE is
written in front of two of its snippets: `score`, which starts a tile, and `write`, which comes
after the last. So nothing of the kernel is replaced, and a broken update shows as what it does.
"""

from dataclasses import dataclass

import numpy as np

from ..errors import ArgumentError
from ..launch.paths import BM, HANDLES, THREADS
from ..machine.backend import choose
from ..problem.cases import BN, D
from ..problem.model import online
from ..show.marks import mark_of, where
from ..text.edits import current
from ..text.source import Source, read

# Two rows of o for each tile, behind the n rows of the answer: o itself, then m and l.
CAPTURE = """\
#line 1 "capture of row {row}"
    for (int r = 0; r < R; ++r)
        if (row0 + warp * R + r == {row}) {{
            float* state = o + (n + {key} / BN * 2) * D;
            state[lane] = o0[r];
            state[lane + 32] = o1[r];
            if (lane == 0) {{
                state[D] = m[r];
                state[D + 1] = l[r];
            }}
        }}
#line {line} "{label}"
"""


@dataclass(frozen=True)
class Capture:
    """m, l: (T + 1,), o: (T + 1, 64), before the first of T tiles and after each; answer: (64,).

    ``mark`` and ``note`` say where they come from, as every figure of the lesson does.
    """

    m: np.ndarray
    l: np.ndarray
    o: np.ndarray
    answer: np.ndarray
    mark: str
    note: str


def instrumented(row):
    """The Source of attentionOnline with CAPTURE for one query row, edits included."""
    now = current("online")
    text = now.text
    for snippet, key in (("score", "key0"), ("write", "n")):
        marker = f"// snippet: {snippet}\n"
        if text.count(marker) != 1:
            raise ArgumentError(
                f"the edited kernel online has no line {marker.strip()!r}, in front of which its "
                "state is read: keep that line, or go back with lesson.reset('online')"
            )
        line = read("online").partition(marker)[0].count("\n") + 2
        text = text.replace(marker, marker + CAPTURE.format(row=row, key=key, line=line,
                                                            label=now.label))
    return Source(now.name, text, now.label, now.path, now.edits)


def capture(inputs, row):
    """Run the online path on ``inputs`` (a Case) and return the Capture of query row ``row``.

    On the GPU or emulated, whichever there is; a NumPy model of the kernel where there is neither.
    """
    HANDLES.refuse(inputs.problem)
    chosen = choose()
    mark, note = mark_of(chosen), where(chosen, "online")
    n, tiles = inputs.n, inputs.n // BN
    if chosen is None:
        trace = []
        answer = online(inputs.q, inputs.k, inputs.v, rows=slice(row, row + 1), trace=trace)
        m, l, o = (np.array([step[name][0] for step in trace]) for name in ("m", "l", "o"))
        zero = np.zeros(1, dtype=np.float32)
        return Capture(np.concatenate([zero - np.inf, m]), np.concatenate([zero, l]),
                       np.concatenate([np.zeros((1, D), np.float32), o]), answer[0], mark, note)
    program = chosen.compile(instrumented(row))
    o = chosen.full((n + 2 * (tiles + 1), D), np.nan)  # a state that is not written shows as NaN
    args = (*(chosen.put(x) for x in (inputs.q, inputs.k, inputs.v)), o, n, D**-0.5)
    program.launch("attentionOnline", (n // BM,), (THREADS,), args)
    out = chosen.get(o)
    states = out[n:].reshape(tiles + 1, 2, D)
    return Capture(states[:, 1, 0], states[:, 1, 1], states[:, 0], out[row], mark, note)
