"""Maths as MathML, made when the page is built: no script, no font from elsewhere, no shift."""

from latex2mathml.converter import convert
from sphinx.util import logging

log = logging.getLogger(__name__)


def mathml(node, display):
    """The MathML of a math node; a warning (and so a failed build) where LaTeX is not understood."""
    latex = node.astext()
    try:
        text = convert(latex, display=display)
    except Exception as error:  # the converter raises many kinds; each is a fault of the source
        log.warning("maths not understood: %s: %s", latex, error, location=node)
        return ""
    return text


def inline(self, node):
    self.body.append(mathml(node, "inline"))
    raise_skip()


def display(self, node):
    self.body.append('<div class="lesson-scroll lesson-math" role="region" tabindex="0">')
    self.body.append(mathml(node, "block"))
    self.body.append("</div>")
    raise_skip()


def raise_skip():
    from docutils import nodes

    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (inline, None), (display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
