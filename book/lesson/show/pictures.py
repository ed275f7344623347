"""Pictures of how things are: each drawn from constants of the kernels, datasheets and runs."""

import numpy as np

from ..launch import masked, paths, rungs
from ..machine import gpus
from ..machine.gpus import KIB, MIB
from ..measure import evidence
from ..problem import cases, merge, model, traffic
from ..problem.problem import D, Problem
from ..tables import Folded, Tables, mib
from ..text import source
from .bytes import counted, dram
from .drawing import BIG, Beside, Panel, Picture
from .gates import trace
from .marks import origin


def memory_levels(n=4096):
    """The memory of a GPU level by level, and what each path moves between them, of one head."""
    return Beside([_levels(gpu, n) for gpu in gpus.products()])


def _levels(gpu, n):
    item = next((item for item in evidence.shown("times")
                 if gpus.product(item.versions["gpu"]) is gpu and counted(item, n, dram)), None)
    if item:
        gaps = [("counted, into and out of L2", counted(item, n, lambda c: c.l2_bytes)),
                ("counted, of device memory", counted(item, n, dram))]
    else:  # what arithmetic knows
        gaps = [("asked for by the kernels", paths.requested_by_path(n)),
                ("each pass over a matrix once", traffic.compulsory(n))]
    most = max(max(found.values()) for _, found in gaps)
    matrix, needed = traffic.score_matrix_bytes(n), traffic.working_memory(n)
    fits = "fits" if matrix <= gpu.l2_bytes else "does not fit"
    said = "; ".join(f"{what}: " + ", ".join(f"{path} {mib(b)}" for path, b in found.items())
                     for what, found in gaps)
    registers, shared = 4 * gpu.registers // KIB, gpu.shared_bytes // KIB
    p = Panel(f"{gpu.name}: {gpu.sms} SMs, each with {registers} KiB of registers and {shared} KiB "
              f"of shared memory; {gpu.l2_bytes // MIB} MiB of L2; {gpu.memory_bytes / 1e9:g} GB "
              f"of device memory. At N = {n:,} a score matrix of {mib(matrix)} MiB {fits} in L2. "
              f"In MiB, {said}.", 272)
    p.text(0, 14, gpu.name, BIG, bold=True)
    p.box(1, 22, 326, 48, "2")
    p.text(8, 38, f"{gpu.sms} SMs, each with its own")
    p.text(8, 58, f"registers {registers} KiB", bold=True)
    p.text(160, 58, f"shared memory {shared} KiB", bold=True)
    _between(p, 72, *gaps[0], most)
    p.box(1, 130, 326, 30, "3")
    p.text(8, 149, f"L2 {gpu.l2_bytes // MIB} MiB", bold=True)
    p.text(320, 149, f"a matrix of {mib(matrix)} MiB {fits}", anchor="end")
    _between(p, 162, *gaps[1], most)
    p.box(1, 220, 326, 48, "1")
    p.text(8, 238, f"device memory {gpu.memory_bytes / 1e9:g} GB", bold=True)
    p.text(320, 238, f"{gpu.bytes_per_s / 1e12:g} TB/s", anchor="end")
    p.text(8, 257, f"holds {mib(needed['materialised'])} MiB materialised, "
           f"{mib(needed['online'])} MiB online")
    how = f"MiB moved at N = {n:,}; sizes by its datasheet"
    if item:
        return Picture([p], how, "recorded", origin(item))
    return Picture([p], how, "computed", f"no {gpu.name} was recorded")


def _between(p, y, what, found, most):
    """What both paths move between two levels: a bar for each."""
    p.line(14, y + 54, 14, y + 4, arrow=True)
    p.line(20, y + 4, 20, y + 54, arrow=True)
    p.text(32, y + 14, what, muted=True)
    for i, (path, amount) in enumerate(found.items()):
        p.text(32, y + 32 + 18 * i, path)
        p.bar(112, y + 21 + 18 * i, 150 * amount / most, 14, "24"[i], mib(amount),
              of=f"{what}, {path}")


BLOCK, WARP, LANE = 1, 2, 5  # whom the pictures of attentionOnline follow


def threads(n=256):
    """Grid, block, warp and lane of attentionOnline: who computes which score and which output."""
    c = source.constants("online")
    bm, bn, r, warps = c["BM"], c["BN"], c["R"], c["WARPS"]
    blocks = n // bm
    a = Panel(f"A grid of {blocks} blocks for N = {n}: block {BLOCK} has the query rows "
              f"{bm * BLOCK} to {bm * (BLOCK + 1) - 1}. Its {c['THREADS']} threads are {warps} "
              f"warps with {r} rows each: warp {WARP} has the rows {bm * BLOCK + r * WARP} to "
              f"{bm * BLOCK + r * (WARP + 1) - 1}.", 236)
    a.text(0, 14, f"grid: N/{bm} blocks", BIG, bold=True)
    a.text(158, 14, f"block {BLOCK}: {warps} warps", BIG, bold=True)
    for b in range(blocks):
        y, height = 28 + 200 * b / blocks, 200 / blocks
        a.box(1, y, 118, height, "1" if b == BLOCK else "line", of=f"block {b}")
        a.text(8, y + height / 2 - 3, f"block {b}", bold=b == BLOCK)
        a.text(8, y + height / 2 + 13, f"rows {bm * b}–{bm * (b + 1) - 1}")
    for w in range(warps):
        y, height, row = 28 + 200 * w / warps, 200 / warps, bm * BLOCK + r * w
        a.box(158, y, 168, height, "2" if w == WARP else "1", of=f"warp {w}")
        a.text(165, y + height / 2 + 4, f"warp {w}: rows {row}–{row + r - 1}", bold=w == WARP)
    for edge, at in ((BLOCK, 28), (BLOCK + 1, 228)):
        a.line(119, 28 + 200 * edge / blocks, 158, at, "muted", dash=True)

    own = [LANE + 32 * i for i in range(c["D"] // 32)]
    p = Panel(f"One warp and one tile: lane {LANE} scores key {LANE} of the tile's {bn} for all "
              f"{r} rows, and owns the output columns {' and '.join(map(str, own))} of the "
              f"{c['D']} in the same rows.", 236)
    p.text(0, 14, f"warp {WARP}, one tile: scores", BIG, bold=True)
    p.text(0, 31, f"{bn} keys: lane j scores key j, lane {LANE} key {LANE}")
    _rows(p, 38, bn, r, [LANE], "score")
    p.text(0, 136, f"warp {WARP}: output", BIG, bold=True)
    p.text(0, 153, f"{c['D']} columns: lane {LANE} owns {' and '.join(map(str, own))}")
    _rows(p, 160, c["D"], r, own, "output")
    return Picture([a, p], f"Who computes what in attentionOnline, N = {n}", "computed",
                   "the kernel's constants")


def _rows(p, y, columns, rows, own, what):
    """Cells of a warp's rows; those of one lane are filled."""
    width, height = 288 / columns, 72 / rows
    p.lattice(38, y, columns, rows, width, height)
    p.text(0, y + 40, f"{rows} rows", muted=True)
    for column in own:
        p.box(38 + width * column, y, width, 72, "2", solid=True, of=f"{what} {column}")


def one_tile(case="spike-late", n=256, row=0):
    """A row's m, l and o before and after a tile: the second and the last; below them, all."""
    inputs = cases.make(case, n)
    steps = []
    model.online(inputs.q, inputs.k, inputs.v, rows=slice(row, row + 1), trace=steps)
    drawn = [_tile(inputs, row, steps, t) for t in (1, len(steps) - 1)]
    picture = Picture(drawn, f"Two tiles of query row {row}, {case}, N = {n}", "computed",
                      "NumPy float32")
    return Tables([picture, Folded(f"All {len(steps)} tiles", trace(case, n, row))])


def tile_update(inputs, row, steps, t):
    """The numbers of tile t of a row: scores, and m, r, l and o[0] before, kept, added, after."""
    keys = slice(t * cases.BN, (t + 1) * cases.BN)
    s = np.float32(D**-0.5) * (inputs.q[row] @ inputs.k[keys].T)
    before, after = steps[t - 1], steps[t]
    m, r = after["m"][0], after["rescale"][0]
    w = np.exp(s - m)
    return {"s": s, "m": (before["m"][0], m), "r": r,
            "l": (before["l"][0], before["l"][0] * r, w.sum(), after["l"][0]),
            "o": (before["o"][0, 0], before["o"][0, 0] * r, w @ inputs.v[keys, 0],
                  after["o"][0, 0])}


def _tile(inputs, row, steps, t):
    found = tile_update(inputs, row, steps, t)
    s, (m0, m1), r = found["s"], found["m"], found["r"]
    p = Panel(f"Tile {t + 1} of {len(steps)}: its largest score is {s.max():.4g}; m was {m0:.4g} "
              f"and becomes {m1:.4g}. r = {r:.3g}. " + " ".join(
                  "{}: {:.4g} before, {:.4g} kept, {:.4g} added, {:.4g} after.".format(name, *x)
                  for name, x in (("l", found["l"]), ("o[0]", found["o"]))), 270)
    p.text(0, 14, f"Tile {t + 1} of {len(steps)}", BIG, bold=True)
    low, high = min(0.0, float(s.min())), max(0.0, float(s.max()))
    zero = 26 + 44 * high / (high - low)
    for j, x in enumerate(s):
        top = zero - 44 * max(float(x), 0.0) / (high - low)
        p.box(112 + 6.7 * j, top, 5, max(44 * abs(float(x)) / (high - low), 0.5), "1", solid=True,
              of=f"score {j}")
    p.text(0, 42, f"its {len(s)} scores")
    p.text(0, 58, f"largest {s.max():.4g}", bold=True)
    p.text(0, 98, f"m {m0:.4g}")
    p.line(74, 94, 108, 94, arrow=True)
    p.text(116, 98, f"m' = max(m, largest) = {m1:.4g}", bold=bool(m1 > m0))
    p.text(0, 120, f"r = exp(m − m') = {r:.3g}:", bold=True)
    p.text(0, 137, "what was summed before " + ("stays as it is" if r == 1 else
           "all but vanishes" if r < 0.01 else "shrinks a little"))
    for x, words in zip(_COLUMNS, ("before", "× r", "tile adds", "after")):
        p.text(x, 160, words, muted=True)
    for name, y in (("l", 167), ("o", 221)):
        values = found[name]
        p.text(0, y + 28, "l" if name == "l" else "o[0]", bold=True)
        most = max(abs(float(x)) for x in values)
        for i, (x, value) in enumerate(zip(_COLUMNS, values)):
            p.box(x, y, 64, 46, "2" if i == 3 else "line")
            p.text(x + 5, y + 19, f"{value:.{3 + (abs(value) > 0.01)}g}", bold=i == 3)
            p.box(x + 5, y + 31, 54 * abs(float(value)) / most, 8, "2" if i == 3 else "1",
                  solid=True, of=f"{name} {i}")
        for x, sign in zip(_COLUMNS[1:], "→+="):
            p.text(x - 6, y + 28, sign, anchor="middle", bold=True)
    return p


_COLUMNS = (34, 110, 186, 262)


def thread_tile(which=7, lane=13):
    """The scores that a thread of a rung holds, what it reads for them, and two earlier rungs."""
    r = rungs.rung(which)
    c = source.constants(r.name)
    rows, keys, own_rows, own_keys = _owned(c, lane)
    cell_x, cell_y = 300 / keys, 5
    p = Panel(f"A warp's {rows} rows x {keys} keys of a tile in rung {r.number}. Lane {lane} holds "
              f"the {len(own_rows)} x {len(own_keys)} scores of the rows "
              f"{', '.join(map(str, own_rows))} and the keys {', '.join(map(str, own_keys))}. For "
              f"a step it reads a number of Q for each of these rows and a number of K for each of "
              "these keys.", 236)
    p.text(0, 14, f"Rung {r.number}: lane {lane} of a warp", BIG, bold=True)
    p.text(26, 33, f"{len(own_keys)} numbers of K, one for each key of its own")
    p.lattice(26, 40, keys, rows, cell_x, cell_y)
    for key in own_keys:
        p.box(26 + cell_x * key, 36, cell_x, 5 * rows + 4, "3", of=f"key {key}")
    for row in own_rows:
        p.box(18, 40 + cell_y * row, keys * cell_x + 8, cell_y, "2", of=f"row {row}")
    for row in own_rows:
        for key in own_keys:
            p.box(26 + cell_x * key, 40 + cell_y * row, cell_x, cell_y, "ink", solid=True,
                  of=f"score {row} {key}")
    p.text(11, 170, f"{len(own_rows)} numbers of Q", turn=-90)
    p.text(26, 217, f"{rows} rows x {keys} keys of a warp; filled: where")
    p.text(26, 232, f"its rows meet its keys, {len(own_rows)} x {len(own_keys)} scores")

    shapes = [(rungs.rung(1), 1, 1)]
    for number in (6, which):
        found = source.constants(rungs.rung(number).name)
        shapes.append((rungs.rung(number), found["TM"], found["TN"]))
    q = Panel("Words read from shared memory for a step: " + "; ".join(
        f"rung {r.number}: {tm + tn} for {tm * tn} multiply-adds, {(tm + tn) / (tm * tn):.3g} each"
        for r, tm, tn in shapes) + ".", 236)
    q.text(0, 14, "What a step reads, and what it is for", BIG, bold=True)
    for i, (r, tm, tn) in enumerate(shapes):
        x, y = (1, 88, 190)[i], 54
        q.text(x, 38, f"rung {r.number}", bold=True)
        for k in range(tn):
            q.box(x + 14 * k + 18, y, 12, 12, "3", of=f"{r.number} K {k}")
        for k in range(tm):
            q.box(x, y + 18 + 14 * k, 12, 12, "2", of=f"{r.number} Q {k}")
        for k in range(tm * tn):
            q.box(x + 18 + 14 * (k % tn), y + 18 + 14 * (k // tn), 12, 12, "ink", solid=True,
                  of=f"{r.number} score {k}")
        q.text(x, 200, f"{tm + tn} words")
        q.text(x, 215, f"for {tm * tn}:")
        q.text(x, 230, f"{(tm + tn) / (tm * tn):.3g} each", bold=True)
    return Picture([p, q], "A thread's scores, and what it reads for them", "computed",
                   "the kernels' constants")


def _owned(c, lane):
    """Rows of a warp, keys of a tile, and those of a lane: (rows, keys, its rows, its keys)."""
    down, across = c["R"] // c["TM"], c["BN"] // c["TN"]  # how the lanes of a warp stand
    row, key = lane % 2 + lane // 16 * 2, lane // 2 % across
    return (c["R"], c["BN"], [row + down * i for i in range(c["TM"])],
            [key + across * j for j in range(c["TN"])])


def merge_tree(case="random", n=1024, parts=4, row=0):
    """A row's keys in parts, each with its m, l and o, and their merges up to the answer."""
    inputs = cases.make(case, n)
    levels = [leaves(inputs, parts, row)]
    while len(levels[-1]) > 1:
        below = levels[-1]
        levels.append([(keys, merge.merge(a, b), (a, b)) for (keys, a, b) in
                       ((k1[0:1] + k2[1:], a, b) for (k1, a, _), (k2, b, _) in
                        zip(below[::2], below[1::2]))])
    (_, (m, l, o), _), = levels[-1]
    answer = float(o[0, 0] / l[0])
    said = "; ".join(
        f"keys {keys[0]} to {keys[1] - 1}: m {part[0][0]:.4g}, l {part[1][0]:.4g}, o[0] "
        f"{part[2][0, 0]:.4g}" for level in levels for keys, part, _ in level)
    p = Panel(f"{parts} parts of query row {row} merge in pairs: {said}. The answer o[0] / l is "
              f"{answer:.5g}.", 110 * len(levels) - 42)
    for depth, level in enumerate(levels):
        y, room = 1 + 110 * depth, p.width / len(level)
        for i, (keys, part, of) in enumerate(level):
            x, (m, l, o) = room * i + room / 2, part
            p.box(x - 40, y, 80, 66, "1" if len(level) > 1 else "2", of=f"keys {_said(keys)}")
            p.text(x, y + 14, _said(keys), anchor="middle", bold=True)
            for k, words in enumerate((f"m {m[0]:.4g}", f"l {l[0]:.4g}", f"o {o[0, 0]:.4g}")):
                p.text(x - 35, y + 30 + 15 * k, words)
            for k, below in enumerate(of):
                above = room * i + room / 4 + room / 2 * k
                p.text(above, y - 30, f"× {np.exp(below[0][0] - m[0]):.3g}", anchor="middle")
                p.line(above, y - 25, x + (-18, 18)[k], y, "muted")
    y = 1 + 110 * (len(levels) - 1)
    p.text(212, y + 32, f"o / l = {answer:.4g}", bold=True)
    p.text(212, y + 48, "is column 0 of", muted=True)
    p.text(212, y + 62, "the row's answer", muted=True)

    q = Panel(f"Each part is multiplied by exp(its m − the m of the merge). So of the denominator "
              f"{l[0]:.4g} come, in their order, " + ", ".join(
                  f"{x:.4g}" for x in counts(levels[0], m)) + ".", 178)
    q.text(0, 14, "How much does each part count?", BIG, bold=True)
    q.text(0, 33, "× is exp(m of the part − m of the merge).")
    q.text(0, 49, f"Its l, in units of the last m = {m[0]:.4g}:")
    for i, ((keys, _, _), x) in enumerate(zip(levels[0], counts(levels[0], m))):
        q.text(0, 74 + 22 * i, _said(keys))
        q.bar(76, 61 + 22 * i, 190 * x / l[0], 16, "1", f"{x:.4g}", of=f"keys {_said(keys)}")
    q.text(0, 74 + 22 * parts, "together", bold=True)
    q.bar(76, 61 + 22 * parts, 190, 16, "2", f"{l[0]:.4g}", of="together")
    return Picture([p, q], f"{parts} parts of query row {row}, {case}, N = {n}", "computed",
                   "NumPy float32")


def _said(keys):
    return f"{keys[0]}–{keys[1] - 1}"


def counts(parts, m):
    """What each part adds to the denominator of their merge, whose maximum is m."""
    return [float(l[0] * np.exp(m0[0] - m[0])) for _, (m0, l, _), _ in parts]


def leaves(inputs, parts, row):
    """``[((first key, behind the last), (m, l, o), ())]`` of a row: arrays of one row, float32."""
    found, size = [], inputs.n // parts
    for i in range(parts):
        keys = slice(i * size, (i + 1) * size)
        s = np.float32(D**-0.5) * (inputs.q[row : row + 1] @ inputs.k[keys].T)
        m = s.max(axis=1)
        w = np.exp(s - m[:, None])
        found.append(((keys.start, keys.stop), (m, w.sum(axis=1), w @ inputs.v[keys]), ()))
    return found


def _grid(p, x, y, seen, keys, size, name):
    """Queries down, keys across: a key that a query sees is filled, another is empty."""
    p.lattice(x, y, keys, len(seen), size, size)
    for row, count in enumerate(seen):
        if count:
            p.box(x, y + row * size, count * size, size, "1", solid=True, of=f"{name} row {row}")


def mask_shapes():
    """Which keys a query sees: a causal square, and 2 x 5 and 5 x 2 beside PyTorch's is_causal."""
    square = Problem(8, 8, causal=True).seen()[0]
    a = Panel("A causal mask of 8 queries and 8 keys: query i sees the keys 0 to i, so "
              f"{', '.join(map(str, square))} keys: the lower left triangle with its diagonal.",
              236)
    a.text(0, 14, "8 queries, 8 keys", BIG, bold=True)
    a.text(0, 34, "keys across, queries down; filled: seen", muted=True)
    _grid(a, 0, 44, square, 8, 23, "square")
    return Picture([a, _aligned(2, 5), _aligned(5, 2)], "Causal masks: a square, and lengths that "
                   "differ", "computed", "Problem.seen(); PyTorch: is_causal")


def _aligned(queries, keys):
    """One pair of lengths: aligned at the bottom right, and at the top left."""
    ours = Problem(queries, keys, causal=True).seen()[0]
    theirs = np.minimum(np.arange(queries) + 1, keys)
    p = Panel(f"{queries} queries, {keys} keys. Here, aligned at the bottom right, the rows see "
              f"{', '.join(map(str, ours))} keys. PyTorch's is_causal, aligned at the top left: "
              f"{', '.join(map(str, theirs))}.", 236)
    p.text(0, 14, f"{queries} queries, {keys} keys", BIG, bold=True)
    for x, name, seen in ((0, "here: bottom right", ours), (172, "PyTorch: top left", theirs)):
        p.text(x, 34, name, muted=True)
        _grid(p, x, 44, seen, keys, 26, name)
        for row, count in enumerate(seen):
            p.text(x + keys * 26 + 5, 62 + 26 * row, count, muted=True)
    return p


def mask_tiles():
    """Tiles that the online kernel walks: whole ones, cut ones and none; and lengths of keys."""
    n, bn = 256, masked.BN
    bm = 2048 // D
    seen = Problem(n, n, causal=True).seen()[0]
    kinds = {}
    for i in range(n // bm):
        for j in range(n // bn):
            least, most = seen[i * bm], seen[(i + 1) * bm - 1]
            kinds[i, j] = ("skipped" if j * bn >= most else
                           "whole" if (j + 1) * bn <= least else "cut")
    count = {kind: list(kinds.values()).count(kind) for kind in ("whole", "cut", "skipped")}
    p = Panel(f"Causal, N = {n}, in tiles of {bm} queries and {bn} keys: {count['whole']} tiles "
              f"are seen whole, {count['cut']} on the diagonal are cut by the mask, "
              f"{count['skipped']} above it are skipped.", 262)
    p.text(0, 14, f"causal, N = {n}: {n // bm} x {n // bn} tiles", BIG, bold=True)
    for (i, j), kind in kinds.items():
        if kind != "skipped":
            p.box(24 * j, 24 + 24 * i, 24, 24, "1" if kind == "whole" else "2", of=f"{i}, {j}")
        if kind == "cut":
            p.line(24 * j, 24 + 24 * i, 24 * j + 24, 48 + 24 * i)
    p.lattice(0, 24, n // bn, n // bm, 24, 24)
    for i, (kind, number) in enumerate(count.items()):
        p.text(204, 44 + 22 * i, f"{kind}: {number}")
    p.text(0, 240, "skipped: no load, no product")
    keys, lengths = 96, (0, 41, 96)
    q = Panel(f"Key lengths {', '.join(map(str, lengths))} of {keys} keys in three batch entries: "
              "the tiles up to each length are walked, the last of them cut; the padding behind it "
              "is never read.", 262)
    q.text(0, 14, f"key lengths {', '.join(map(str, lengths))} of {keys}", BIG, bold=True)
    for entry, length in enumerate(lengths):
        y = 46 + 62 * entry
        q.text(0, y - 6, f"batch entry {entry}: {length} keys, {-(-length // bn)} tiles walked")
        if length:
            q.box(0, y, 3 * length, 24, "1", solid=True, of=f"entry {entry}")
        q.lattice(0, y, keys // bn, 1, 3 * bn, 24)
    q.text(0, 240, "empty: padding, which may hold NaN")
    return Picture([p, q], "What the online kernel walks", "computed", "the kernel's constants")
