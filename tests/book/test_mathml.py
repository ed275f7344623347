"""Maths as MathML, when the book is built."""

import html
import re

import pytest
from support.books import Markdown


def test_maths_that_cannot_be_shown_fails_the_build(small_book):
    bad = {"01": r"$\unknown{x}$", "02": "$x_{$", "03": r"$$\left( x$$"}
    for name, maths in bad.items():
        small_book.write(name, Markdown(f"# A\n\nText {maths}."))
    done = small_book.build()
    assert done.returncode != 0
    for name in bad:
        assert re.search(rf"{name}\.ipynb.*maths not understood", done.stdout), name


def test_maths_is_mathml(small_pages):
    page = small_pages["maths"]
    assert page.count("<math") == 2 and page.count("<mtr>") == 2
    assert "</math>.</span>" in page  # the full stop stays on the formula's line
    assert "_static/maths.css" in page
    assert "mathjax" not in page.lower()


@pytest.mark.parametrize("latex, display, expected", [
    (r"O(\log N)", "inline", "O ( log | N )"),
    (r"8 \epsilon \max |s|", "inline", "8 \u03f5 | max | < s >"),
    (r"\max(m, s)", "inline", "max ( m , s )"),
    (r"= \max_{j} s_j", "inline", "= [sub max j ] | [sub s j ]"),
    (r"= \max_{j} s_j", "block", "= [under max j ] | [sub s j ]"),
    (r"\exp(a) \exp({-\infty})", "inline", "exp ( a ) | exp ( ^\u2212 \u221e )"),
])
def test_maths_has_the_spaces_of_latex(latex, display, expected):
    """In `expected` a bar is a thin space, < and > are fences, ^ is a sign."""
    from latex2mathml.converter import convert
    from mathml import spaced

    text = html.unescape(spaced(convert(latex, display=display), display))
    for pattern, short in (("<mspace[^>]*></mspace>", " | "), ('<mo[^>]*"prefix">\\|</mo>', " < "),
                           ('<mo[^>]*"postfix">\\|</mo>', " > "), ('<mo form="prefix">', " ^"),
                           ("<m(sub|under)>", r" [\1 "), ("</m(sub|under)>", " ] ")):
        text = re.sub(pattern, short, text)
    # Tags, except for the fences above.
    assert re.sub(r"</?m[^>]*>", " ", text).split() == expected.split()
