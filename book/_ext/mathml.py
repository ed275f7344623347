"""Maths as MathML, made when the page is built: no script, nothing from elsewhere, no shift."""

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util import logging

BAR = '<mo stretchy="false"{}>&#x0007C;</mo>'
THIN = '<mspace width="0.1667em"></mspace>'
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
    return spaced(text, display)


def spaced(text, display):
    """MathML with the spaces that LaTeX has: the converter takes too much for an operator."""
    # Infinity is a value, and a minus after one of these is a sign.
    text = text.replace("<mo>&#x0221E;</mo>", "<mi>&#x0221E;</mi>")
    text = re.sub(r"(&#x0003D;|&#x00028;|&#x0002C;|<mrow>)(</mo>)?<mo>&#x02212;",
                  r'\1\2<mo form="prefix">&#x02212;', text)
    # Bars come in pairs.
    text = re.sub(f"{BAR.format('')}(.*?){BAR.format('')}",
                  BAR.format(' form="prefix"') + r"\1" + BAR.format(' form="postfix"'), text)
    # The maximum is a function's name; on a line of its own its index stands below it.
    text = text.replace("<mo>max</mo>", "<mi>max</mi>")
    if display == "block":
        text = re.sub(r"<msub>(<mi>max</mi><mrow>.*?</mrow>)</msub>", r"<munder>\1</munder>", text)
    # Between a factor and a function's name; between the name and an argument without brackets.
    name = "<mi>(?:exp|log|max)</mi>"
    text = re.sub(f"(</mi>|</mn>|</msub>|&#x00029;</mo>)(?={name})", r"\1" + THIN, text)
    indexed = "<munder><mi>max</mi>.*?</munder>|<msub><mi>max</mi>.*?</msub>"
    argument = '<mi>|<msub>|<mo stretchy="false" form="prefix">'
    return re.sub(f"({indexed}|{name})(?={argument})", r"\1" + THIN, text)


def hold_punctuation(app, doctree, docname):
    """A browser may break a line between maths and a comma: give the comma to the maths."""
    for node in list(doctree.findall(nodes.math)):
        after = node.next_node(descend=False, siblings=True)
        if isinstance(after, nodes.Text) and (held := re.match(r"[,.;:?)]+", after)):
            node["after"] = held[0]
            after.parent.replace(after, nodes.Text(after[held.end():]))


def inline(self, node):
    text = mathml(node, "inline")
    held = node.get("after")
    self.body.append(f'<span class="held">{text}{held}</span>' if held else text)
    raise nodes.SkipNode


def display(self, node):
    box = '<div class="lesson-scroll lesson-math" role="group" tabindex="0" aria-label="Formula">'
    self.body.append(f"{box}{mathml(node, 'block')}</div>")
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (inline, None), (display, None))
    app.connect("doctree-resolved", hold_punctuation)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
