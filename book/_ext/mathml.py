"""Maths as MathML, made when the page is built: no script, nothing from elsewhere, no shift."""

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util import logging

SIGN = r'\1\2<mo form="prefix">&#x02212;'
log = logging.getLogger(__name__)


def mathml(node, display):
    """The MathML of a math node; a warning, which fails the build, for LaTeX not understood."""
    latex = node.astext()
    # The same layout by the name that the converter knows.
    known = latex.replace("{aligned}", "{align*}")
    try:
        text = convert(known, display=display)
        if "\\" in text or "<mi>&</mi>" in text:  # an unknown command comes back as it was
            raise ValueError("a command that the converter does not know")
    except Exception as error:  # the converter raises many kinds; each is a fault of the source
        log.warning("maths not understood: %s (%s)", latex, error, location=node)
        return ""
    # Infinity is a value, and a minus after one of these is a sign: without operators' spacing.
    text = text.replace("<mo>&#x0221E;</mo>", "<mi>&#x0221E;</mi>")
    return re.sub(r"(&#x0003D;|&#x00028;|&#x0002C;|<mrow>)(</mo>)?<mo>&#x02212;", SIGN, text)


def inline(self, node):
    self.body.append(mathml(node, "inline"))
    raise nodes.SkipNode


def display(self, node):
    box = '<div class="lesson-scroll lesson-math" role="group" tabindex="0" aria-label="Formula">'
    self.body.append(f"{box}{mathml(node, 'block')}</div>")
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (inline, None), (display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
