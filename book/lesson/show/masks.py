"""The verb ``masks``: both ways for any Problem, their classic mistakes, and what a mask leaves."""

import numpy as np

from ..errors import ArgumentError
from ..launch import masked, use
from ..machine import backend as backends
from ..machine import gpus, prints
from ..measure.gates_and_times import judged, one_order
from ..measure.mutants import FAR, MASKED, masked_case, masked_rejection, masked_verdicts
from ..problem.cases import make
from ..problem.problem import Problem
from ..tables import Sentence, Table, Tables
from .marks import mark_of, where

WHAT = ("gate", "nan", "tiles", "index", "mistakes", "decoding")


@prints.limited()
def masks(what="gate", queries=65, keys=65, case="random", **fields):
    """Both kernels of masked.cu, as edited in this session.

    what: 'gate' runs them on a case; 'nan' puts a NaN into V, after two thirds of the keys, and
    looks which queries it reaches; 'tiles' counts the tiles of keys that the online kernel
    walks; 'index' asks index() where the last number of a score matrix queries x keys stands;
    'mistakes' breaks the file in each classic way; 'decoding' counts what one query reads of keys,
    and gates the kernel for it. queries, keys, and fields of a Problem: batch, heads,
    kv_heads, d, causal, key_lengths, scale. What key_lengths leaves of K and V is filled with NaN.
    Raises ArgumentError for an unknown ``what`` or what is no problem.
    """
    if what not in WHAT:
        raise ArgumentError(f"what = {what!r}: choose one of {', '.join(WHAT)}")
    try:
        problem = Problem(queries, keys, **fields)
    except TypeError:
        raise ArgumentError(f"fields = {', '.join(fields)}: choose from batch, heads, kv_heads, d, "
                            "causal, key_lengths, scale") from None
    if what == "tiles":
        walked, every = masked.tiles(problem)
        return Sentence(f"{problem}: {walked:,} of {every:,} tiles of a head are walked, "
                        f"{walked / every:.0%}.", "computed", "")
    if what == "decoding":
        return _decoding(keys, fields.get("heads", 1))
    if (chosen := backends.choose()) is None:
        return Sentence("masked.cu must run: this needs a GPU or a C++ compiler", "computed", "")
    if chosen.mark == "emulated":
        chosen = one_order()
    if what == "index":
        at = masked.index(chosen, 0, queries, queries - 1, keys, keys - 1)
        return Sentence(f"The last number of {queries:,} x {keys:,} stands at "
                        f"{queries * keys - 1:,}; index() gives {at:,}.",
                        mark_of(chosen), where(chosen, masked.NAME))
    if what == "mistakes":
        return _mistakes(chosen)
    if what == "nan":
        return _nan(chosen, masked_case(problem, case))
    inputs = masked_case(problem, case)
    t = Table(f"Gate: {case}, {problem}",
              ["path", "verdict", "gate fraction", "max abs error", "rtol"],
              note=where(chosen, masked.NAME))
    failed = []
    for path, v in masked_verdicts(chosen, inputs):
        t.add(mark_of(chosen), path, "pass" if v.passed else "fail", f"{v.fraction:.3f}",
              f"{v.max_abs_error:.1e}", f"{v.rtol:.2g}")
        failed += [] if v.passed else [v.explain(path, case, problem)]
    t.footer = "\n".join(failed)
    return t


def _nan(backend, case):
    """Which queries a NaN in V reaches, beside those that see its key."""
    p, key = case.problem, case.problem.keys * 2 // 3
    case.v.reshape(p.batch, p.kv_heads, p.keys, p.d)[:, :, key] = np.nan
    sees = np.broadcast_to((p.seen() > key)[:, None], (p.batch, p.heads, p.queries))
    t = Table(f"A NaN in key {key} of V, {p}",
              ["path", "verdict", "rows that see it", "rows with a NaN"],
              note=where(backend, masked.NAME))
    for path in masked.PATHS:
        o = masked.plan(backend, path, case).run()
        bad = np.isnan(o).any(axis=-1).reshape(sees.shape)
        t.add(mark_of(backend), path, "pass" if (bad == sees).all() else "fail",
              f"{sees.sum():,}", f"{bad.sum():,}")
    return t


def _mistakes(backend):
    """Every mutant of MASKED on the problem that catches it and on one that lets it through."""
    t = Table("Classic mistakes", ["mistake", "let through by", "caught by"], note=where(backend))
    for mutant, caught, passes in MASKED:
        there = masked_rejection(backend, mutant, caught, mutant.caught_by)
        elsewhere = masked_rejection(backend, mutant, passes)
        of = f"{mutant.caught_by}, {caught}" if caught else f"an index beyond {FAR:,} x {FAR:,}"
        t.add(mark_of(backend), mutant.name,
              f"NOT BY {passes}" if elsewhere.rejected else f"random, {passes}",
              of if there.rejected else f"NOT BY {of}")
    return t


def _decoding(keys, heads):
    """Bytes and operations of one query, of as many queries as keys, and the least times."""
    t = Table(f"One query beside N of them, {heads} heads, {keys:,} keys, d = 64",
              ["GPU", "queries", "MiB of Q, K, V, O", "operations a byte", "bytes need, ms",
               "operations need, ms", "blocks unsplit, SMs"], note="datasheets")
    for gpu in gpus.products():
        for queries in (1, keys):
            p = Problem(queries, keys, heads=heads)
            t.add("computed", gpu.name, f"{queries:,}", f"{p.tensor_bytes / gpus.MIB:,.0f}",
                  f"{p.operations / p.tensor_bytes:,.1f}",
                  f"{1e3 * p.tensor_bytes / gpu.bytes_per_s:.3g}",
                  f"{1e3 * p.operations / gpu.flops:.3g}",
                  f"{heads * -(-queries // use.BN):,}, {gpu.sms}")
    if (chosen := backends.choose()) is None:
        return t
    if chosen.mark == "emulated":
        chosen = one_order()
    g = Table("The kernel for few queries, gated on 1,000 keys of 2 heads",
              ["parts of the keys", "verdict", "gate fraction", "blocks"], note=where(chosen))
    case = make("spike-late", Problem(1, 1000, heads=2))
    for splits in (1, 4, 15):
        planned = use.plan(chosen, case.problem, *(chosen.put(x) for x in (case.q, case.k, case.v)),
                           splits=splits)
        v = judged(case, planned.run())
        g.add(mark_of(chosen), splits, "pass" if v.passed else "fail", f"{v.fraction:.3f}",
              2 * splits)
    return Tables([t, g])
