"""What is computed: the description's fields, what follows from them, and who does which part."""

import re

import numpy as np
import pytest
from lesson.errors import ArgumentError
from lesson.launch import paths, rungs
from lesson.problem.problem import D, Handles, Problem, of

GENERAL = Problem(5, 9, batch=2, heads=4, kv_heads=2, d=16, causal=True, key_lengths=(9, 6),
                  scale=0.3)


def test_what_is_left_out_is_the_lessons_problem():
    p = Problem(128, 128)
    assert (p.batch, p.heads, p.kv_heads, p.d) == (1, 1, 1, 64)
    assert (p.causal, p.key_lengths) == (False, None)
    assert p.scale == 0.125 and p.n == 128 and of(128) == p and of(p) is p
    assert p.q_shape == p.kv_shape == (128, 64)


@pytest.mark.parametrize("field, value", [
    *((field, value) for field in ("queries", "keys", "batch", "heads", "kv_heads", "d")
      for value in (0, -1, 1.5, "8", True, float("nan"))),
    ("queries", None), ("heads", None),
])
def test_a_field_that_is_no_whole_number_is_named(field, value):
    with pytest.raises(ArgumentError, match=re.escape(f"{field} = {value!r}: needs a whole")):
        Problem(**{"queries": 8, "keys": 8, field: value})


def test_whole_numbers_of_numpy_are_kept_as_pythons():
    p = Problem(np.int64(8), np.float32(8), key_lengths=(np.int32(3),))
    assert p == Problem(8, 8, key_lengths=[3])
    assert all(type(x) is int for x in (p.queries, p.keys, *p.key_lengths))


@pytest.mark.parametrize("fields, words", [
    ({"heads": 4, "kv_heads": 3}, "kv_heads = 3: must divide heads = 4"),
    ({"key_lengths": (1, 2)}, "key_lengths has 2 numbers, needs one number for each of 1"),
    ({"key_lengths": (9,)}, "key_lengths = (9,): each lies between 0 and keys = 8"),
    ({"key_lengths": (-1,)}, "key_lengths = (-1,): each lies between 0 and keys = 8"),
    ({"key_lengths": (2.5,)}, "key_lengths = (2.5,): each lies between 0 and keys = 8"),
    ({"key_lengths": 4}, "key_lengths = 4: needs one number for each of 1 batch"),
    ({"scale": 0.0}, "scale = 0.0: needs a number above 0"),
    ({"scale": float("nan")}, "scale = nan: needs a number above 0"),
    ({"scale": "wide"}, "scale = 'wide': needs a number above 0"),
])
def test_fields_that_contradict_each_other_are_named(fields, words):
    with pytest.raises(ArgumentError, match=re.escape(words)):
        Problem(8, 8, **fields)


@pytest.mark.parametrize("fields, q, kv", [
    ({}, (5, 64), (9, 64)),
    ({"d": 32}, (5, 32), (9, 32)),
    ({"heads": 4}, (4, 5, 64), (4, 9, 64)),
    ({"heads": 4, "kv_heads": 2}, (4, 5, 64), (2, 9, 64)),
    ({"batch": 3}, (3, 1, 5, 64), (3, 1, 9, 64)),
    ({"batch": 3, "heads": 4, "kv_heads": 1}, (3, 4, 5, 64), (3, 1, 9, 64)),
])
def test_shapes(fields, q, kv):
    p = Problem(5, 9, **fields)
    assert (p.q_shape, p.kv_shape) == (q, kv)
    assert p.tensor_bytes == 4 * 2 * (np.prod(q) + np.prod(kv))  # Q and O, K and V


@pytest.mark.parametrize("p", [
    Problem(5, 5, causal=True), Problem(3, 7, causal=True), Problem(7, 3, causal=True),
    Problem(4, 9, batch=3, key_lengths=(0, 4, 9)), GENERAL,
], ids=str)
def test_seen_keys_are_those_of_the_mask(p):
    mask = np.ones((p.batch, p.queries, p.keys), bool)
    for entry, i, j in np.ndindex(*mask.shape):
        if p.causal and j > i + p.keys - p.queries:  # aligned to the bottom right
            mask[entry, i, j] = False
        if p.key_lengths is not None and j >= p.key_lengths[entry]:
            mask[entry, i, j] = False
    seen = p.seen()
    assert seen.shape == (p.batch, p.queries) and np.array_equal(seen, mask.sum(axis=2))
    assert np.array_equal(mask, np.arange(p.keys) < seen[..., None])  # the first ones
    assert p.operations == 4 * p.d * p.heads * mask.sum()


def test_operations_and_bytes_of_the_lessons_problem_are_the_formulas():
    p = of(4096)
    assert p.operations == 4 * 4096**2 * 64
    assert p.tensor_bytes == 16 * 4096 * 64 and p.score_matrix_bytes == 4 * 4096**2
    assert Problem(4096, 4096, heads=16).score_matrix_bytes == 16 * 4 * 4096**2


@pytest.mark.parametrize("p", [of(64), Problem(3, 7, heads=4, kv_heads=2), GENERAL], ids=str)
def test_the_short_form_says_all_that_is_not_the_default(p):
    assert Problem(**p.given()) == p
    assert of(64).given() == {"queries": 64, "keys": 64}


@pytest.mark.parametrize("p, words", [
    (of(256), "N = 256"),
    (Problem(5, 9, heads=4), "5 queries, 9 keys, 4 heads"),
    (GENERAL, "5 queries, 9 keys, 2 batch entries, 4 heads on 2, d = 16, causal, key lengths (9, 6)"
              ", scale 0.3"),
])
def test_a_problem_in_words(p, words):
    assert str(p) == words


# --- who handles what -----------------------------------------------------------------------------

ALL_BUT = [
    ("d", {"d": 32}, "d = 32", "needs d = 64"),
    ("causal", {"causal": True}, "causal = True", "set causal=False"),
    ("key_lengths", {"key_lengths": (60,)}, "key_lengths = (60,)", "cut K and V"),
    ("scale", {"scale": 1.0}, "scale = 1", "multiply Q by 8 instead"),
    ("batch", {"batch": 2}, "batch = 2", "give one at a time"),
    ("heads", {"heads": 2}, "heads = 2", "one head"),
    ("queries", {"queries": 128}, "queries = 128, keys = 64", "as many queries as keys"),
]


@pytest.mark.parametrize("field, fields, value, remedy", ALL_BUT, ids=[row[0] for row in ALL_BUT])
def test_a_kernel_names_what_it_does_not_do(field, fields, value, remedy):
    with pytest.raises(ArgumentError) as error:
        paths.HANDLES.refuse(Problem(**{"queries": 64, "keys": 64, **fields}))
    message = str(error.value)
    assert message.startswith(f"{value}: the lesson's kernel ") and remedy in message


def test_lengths_that_tiles_do_not_divide_come_with_the_nearest():
    for n, nearest in ((1, 64), (100, 128), (65, 64), (4010, 4032)):
        words = rf"n = {n}: .*multiple of 64.*nearest is {nearest}\)"
        with pytest.raises(ArgumentError, match=words):
            paths.HANDLES.refuse(of(n))
    for n in (64, 192, 4096):
        paths.HANDLES.refuse(of(n))


@pytest.mark.parametrize("rung", rungs.RUNGS, ids=lambda r: r.name.split("/")[-1])
def test_a_rung_handles_heads_where_it_says_so(rung):
    several = Problem(128, 128, heads=3)
    if rung.heads:
        rung.handles.refuse(several)
        with pytest.raises(ArgumentError, match="kv_heads = 1: .*repeat K and V"):
            rung.handles.refuse(Problem(128, 128, heads=3, kv_heads=1))
    else:
        with pytest.raises(ArgumentError, match=f"heads = 3: rung {rung.number} takes one head"):
            rung.handles.refuse(several)
    with pytest.raises(ArgumentError, match="causal = True"):
        rung.handles.refuse(Problem(128, 128, causal=True))


def test_what_a_kernel_handles_can_be_another_tile():
    handles = Handles("mine", multiple=128)
    handles.refuse(of(256))
    with pytest.raises(ArgumentError, match="n = 64: .*multiple of 128.*nearest is 128"):
        handles.refuse(of(64))
    assert D == 64
