"""The description of the evidence format is the code's."""

import dataclasses
import re
import types

from lesson.measure import evidence, records
from lesson.problem.problem import Problem
from support import ROOT


def described():
    """``{section: {field: its type}}`` of the tables in evidence/README.md."""
    text = (ROOT / "book/evidence/README.md").read_text(encoding="utf-8")
    found = {}
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.M)
        found[section.split("\n", 1)[0]] = dict(rows)
    return found


KINDS = (evidence.Evidence, Problem, records.Gate, records.Time, records.Facts, records.Rejection,
         records.Counters, records.Sanitizer, records.Bench, records.Ceiling, records.Row,
         records.RungCounters, records.Tensor, records.Use, records.Agreement,
         records.Repeat, records.Rate, records.Long, records.Several, records.Shared)


def in_words(field):
    """A field's type as the description writes it."""
    kind = field.type
    if isinstance(kind, types.UnionType):
        kind = kind.__args__[0]  # the other one is None
    said = (f"list of {kind.__args__[0].__name__}" if isinstance(kind, types.GenericAlias) else
            kind.__name__)
    return said if field.default is dataclasses.MISSING else f"{said}, optional"


def test_the_format_is_described_field_by_field():
    assert described() == {
        kind.__name__: {field.name: in_words(field) for field in dataclasses.fields(kind)}
        for kind in KINDS}
