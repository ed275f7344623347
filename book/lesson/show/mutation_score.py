"""The gate's score: every small change of every kernel, and what became of it."""

from collections import Counter
from dataclasses import dataclass
from html import escape

from ..launch import paths, rungs
from ..measure import mutation, mutation_run, survivors
from ..problem import cases
from ..tables import Folded, Sentence, Table, Tables, mark_html
from ..text import mutations
from .drawing import BIG, WIDTH, Panel, Picture
from .rungs import diff_line

CASE, EMULATOR, HOLE = "rejected by a case", "rejected by the emulator", "hole"
SAME = "the same machine code"
EQUAL, OUTSIDE = survivors.EQUAL, survivors.OUTSIDE
SMALL = "small random"  # the last of mutation.ALONE
LEFT = 100  # px before the strips of the grid
SHOWN = 6  # mutants whose change a page shows


@dataclass(frozen=True)
class Outcome:
    """One mutant of a Record: the Mutation, its Verdict, the Reason of a survivor, and a word."""

    mutant: object
    verdict: object
    reason: object

    @property
    def word(self):
        if self.verdict.status == mutation.REJECTED:
            return CASE if self.verdict.by in cases.NAMES else EMULATOR
        if self.verdict.status == mutation.SAME:
            return SAME
        return self.reason.verdict if self.reason else HOLE


def outcomes(record):
    """The Outcomes of a Record, of what compiles; of sources that have not changed since."""
    found = []
    stale = record.stale()
    for name, its in record.sources.items():
        if name in stale:
            continue
        by_key = {m.key: m for m in mutations.mutations(name)}
        for key, verdict in its["verdicts"].items():
            if verdict.status != mutation.NONE:
                survived = verdict.status == mutation.SURVIVED
                found.append(Outcome(by_key[key], verdict,
                                     survivors.reason(by_key[key]) if survived else None))
    return found


def mutation_score():
    """What became of every small change of the kernels, from the run that the book carries."""
    record = mutation_run.read()
    if record is None:
        return Table("Mutants by the thousand", ["mutant"],
                     footer="no run is recorded: make mutants runs them, with a C++ compiler")
    return draw(record, outcomes(record))


def draw(record, found):
    """The score of a Record, its grid, and its tables."""
    note = f"on the host, {record.versions['compiler']}, {record.day}"
    alone = {o.mutant.key: record.alone[o.mutant.key] for o in found
             if o.mutant.key in record.alone}
    stale = record.stale()
    parts = [Sentence(f"Of another version, and not counted: {', '.join(stale)}.", "stale", note)
             ] * bool(stale)
    by_key = {o.mutant.key: o.mutant for o in found}
    return Tables([
        *parts,
        Picture([_verdicts(found), _grid(alone)], f"{score(found)} {story(alone)}", "recorded",
                note),
        Folded("What rejected them, what passes and why it may, holes that were found",
               Tables([by_check(found, note), reasons(found, note), closed(),
                       by_source(found, note)])),
        Folded("Mutants to look at, as diffs",
               Tables([Change(by_key[key], said) for key, said in telling(alone)]
                      or [Sentence("none ran on every case", "recorded", note)]))])


def score(found):
    """The score, in a sentence."""
    count = Counter(o.word for o in found)
    rejected = [o for o in found if o.verdict.status == mutation.REJECTED]
    early = sum(o.verdict.check.startswith("periodic, ") for o in rejected)
    passing = count[SAME] + count[EQUAL] + count[OUTSIDE]
    return (f"{len(found):,} mutants of {len({o.mutant.name for o in found})} files: "
            f"{len(rejected):,} rejected, {early:,} of them on periodic, which runs first; "
            f"{passing:,} equal or outside the domain ({passing / max(len(found), 1):.1%}); "
            f"{count[HOLE]:,} hole{'s' * (count[HOLE] != 1)}.")


def story(alone):
    """What some cases alone would have let through, in a sentence."""
    through = let_through(alone)
    best = next(iter(through), "")
    blind = sum("1" not in bits[: len(cases.NAMES)] for bits in alone.values())
    return (f"{len(alone)} of the two paths, chosen by hash, ran on every case: small random "
            f"numbers alone would let {through.get(SMALL, 0)} through, {best}, the best case, "
            f"{through.get(best, 0)}, all {len(cases.NAMES)} together {blind or 'none'}.")


def _group(name):
    if name in paths.PATHS:
        return name
    if name == rungs.MERGE:
        return "merge"
    if name == rungs.HALVES or rungs.rung(name).number >= rungs.TENSOR[0].number:
        return "tensor cores"
    return "rungs 2 to 21"


_LOOK = {CASE: ("1", "case"), EMULATOR: ("2", "emulator"), SAME: ("3", "same code"),
         EQUAL: ("4", "equal"), OUTSIDE: ("muted", "outside"), HOLE: ("fail", "hole")}


def _verdicts(found):
    """Bars: the verdicts of each group of sources, with their numbers."""
    groups = {}
    for o in found:
        groups.setdefault(_group(o.mutant.name), Counter())[o.word] += 1
    said = "; ".join(f"{name}: " + ", ".join(f"{count[word]} {word}" for word in _LOOK
                                            if count[word]) for name, count in groups.items())
    p = Panel(f"Verdicts. {said}.", 64 + 35 * len(groups))
    p.text(0, 14, "What became of them", BIG, bold=True)
    for i, (name, count) in enumerate(groups.items()):
        total, x, y = count.total(), 0.0, 22 + 35 * i
        p.text(0, y + 11, f"{name}: {total:,}")
        for word, (colour, _) in _LOOK.items():
            width = WIDTH * count[word] / total
            if width:
                p.box(x, y + 15, width, 16, colour, of=f"{name}: {count[word]} {word}")
            if width > 8 * len(f"{count[word]:,}"):
                p.text(x + width / 2, y + 27, f"{count[word]:,}", anchor="middle")
            x += width
    y = 36 + 35 * len(groups)
    for i, (word, (colour, short)) in enumerate(_LOOK.items()):
        x, row = WIDTH / 3 * (i % 3), i // 3
        p.box(x, y + 18 * row - 4, 10, 10, colour)
        p.text(x + 14, y + 5 + 18 * row, f"{short} {sum(c[word] for c in groups.values()):,}")
    return p


def names_alone():
    """What stands before the strips of the grid."""
    return [SMALL if check.way else check.case for check in mutation.ALONE]


def let_through(alone):
    """``{case: number of mutants that it alone would let through}``, fewest first."""
    names = names_alone()
    found = {name: sum(bits[i] == "0" for bits in alone.values()) for i, name in enumerate(names)}
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _grid(alone):
    """A strip a case, a place a mutant that some case lets through; coloured where it does."""
    through, names = let_through(alone), names_alone()
    some = sorted(bits for bits in alone.values() if "0" in bits)
    some.sort(key=lambda bits: (bits.count("0"), bits))
    p = Panel(f"Of {len(alone)} mutants of the two paths that a case rejects, alone would let "
              "through: " + ", ".join(f"{name} {count}" for name, count in through.items()) + ".",
              62 + 13 * len(names))
    p.text(0, 14, f"Let through by one case alone, of {len(alone)}", BIG, bold=True)
    left, width = LEFT + 30, WIDTH - LEFT - 30
    step = width / max(len(some), 1)
    for k, (name, count) in enumerate(through.items()):
        i, y = names.index(name), 22 + 13 * k
        p.text(0, y + 11, name)
        p.text(left - 6, y + 11, count, anchor="end")
        start = None
        for x, bits in enumerate([*some, "1" * len(names)]):
            if bits[i] == "0" and start is None:
                start = x
            elif bits[i] == "1" and start is not None:
                p.box(left + step * start, y + 1, step * (x - start), 10, "fail", solid=True,
                      of=f"{name}: {x - start}")
                start = None
    y = 38 + 13 * len(names)
    p.text(0, y, f"{len(some)} places: the mutants that some case")
    p.text(0, y + 16, f"lets through; marked: this one. N = {mutation.ALONE[0].n}")
    return p


def by_source(found, note):
    """Verdicts of each source."""
    words = list(_LOOK)
    t = Table("Mutants by source", ["source", "mutants", *words], note=note)
    for name in dict.fromkeys(o.mutant.name for o in found):
        count = Counter(o.word for o in found if o.mutant.name == name)
        t.add("recorded", name.removeprefix("ladder/"), count.total(),
              *(count[word] for word in words))
    return t


def by_check(found, note):
    """What rejected how many first, and at which N."""
    count = Counter((o.verdict.by, o.verdict.check) for o in found
                    if o.verdict.status == mutation.REJECTED)
    rejected = count.total()
    t = Table("What rejected first", ["by", "on", "mutants", "of all rejected"], note=note)
    for (by, check), times in count.most_common():
        t.add("recorded", by, check, times, f"{times / rejected:.1%}")
    t.footer = ("The checks come in a fixed order, the cheap ones first. On: the input, its size, "
                "and how it was launched.")
    return t


def reasons(found, note):
    """The classes of what passes: how many, one of them, and why."""
    t = Table("Equal, or outside the domain", ["why", "mutants", "verdict", "for instance"],
              note=note)
    same = [o for o in found if o.word == SAME]
    if same:
        t.add("recorded", "The GPU's compiler makes the same of both.", len(same), EQUAL,
              _instance(same[0].mutant))
    for r in survivors.REASONS:
        its = [o for o in found if o.reason is r]
        if its:
            why = f"{r.why} The difference shows with {r.shows}." if r.shows else r.why
            t.add("recorded", why, len(its), r.verdict, _instance(its[0].mutant))
    for o in found:
        if o.word == HOLE:
            t.add("recorded", "No reason is known.", 1, HOLE, _instance(o.mutant))
    t.footer = f"The domain: {survivors.DOMAIN}."
    return t


def _instance(m):
    return f"{m.name.removeprefix('ladder/')}, line {m.line}: {m.changed}"


def telling(alone):
    """(key, sentence) of mutants to look at: of each case one that few others catch."""
    names, found = names_alone(), {}
    for key, bits in sorted(alone.items(), key=lambda item: (item[1].count("1"), item[0])):
        caught = [name for name, bit in zip(names, bits) if bit == "1"]
        first = caught[0] if caught else ""
        if first and first not in found and len(found) < SHOWN:
            others = f" and {len(caught) - 1} more" if len(caught) > 1 else " alone"
            found[first] = (key, f"Caught by {first}{others}")
    return list(found.values())


def closed():
    """Holes that were found on the way, and the check that was added for each."""
    t = Table("Holes that were found on the way", ["hole", "for instance", "closed by"],
              note="each is a test")
    for hole in survivors.CLOSED:
        t.add("computed", hole.words, f"{hole.name.removeprefix('ladder/')}: {hole.changed}",
              hole.closed_by)
    return t


@dataclass(frozen=True)
class Change:
    """A mutant as a diff, behind a sentence."""

    mutant: object
    said: str
    mark: str = "computed"

    def text(self):
        return f"{self.said}: {self.mutant.name}, line {self.mutant.line}\n{self.mutant.diff()}"

    def _repr_html_(self):
        label = f"{self.said}: {self.mutant.name}, line {self.mutant.line}"
        lines = "".join(map(diff_line, self.mutant.diff().split("\n")))
        return ('<div class="lesson-output" data-mark="computed"><details><summary>'
                f'{escape(label)} {mark_html("computed")}</summary>'
                '<div class="lesson-scroll" role="region" tabindex="0" style="overflow-x:auto" '
                f'aria-label="{escape(label)}"><pre class="lesson-diff">{lines}</pre></div>'
                "</details></div>")
