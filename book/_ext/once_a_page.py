"""A widget's style and script stand once on a page, however many of its kind are there.

Each widget brings its own, since in a notebook it may be the only one. On a page the first one's
serve all: its script starts every widget that has not started yet.
"""

import re

from docutils import nodes

_PART = re.compile(r'<style>.*?</style>\n?|<script type="module">.*?</script>\n?', re.S)


def keep_first(texts):
    """The HTML texts of a page, each style and script only where it comes first."""
    seen = set()

    def part(match):
        if match[0] in seen:
            return ""
        seen.add(match[0])
        return match[0]

    return [_PART.sub(part, text) for text in texts]


def _keep_first(app, doctree, name):
    raw = [node for node in doctree.findall(nodes.raw) if "html" in node.get("format", "")]
    for node, text in zip(raw, keep_first([node.astext() for node in raw]), strict=True):
        if text != node.astext():
            node.replace_self(nodes.raw(text, text, **node.attributes))


def setup(app):
    app.connect("doctree-resolved", _keep_first)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
