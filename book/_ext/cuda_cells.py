"""Highlight `%%kernel NAME` cells as CUDA.

The Python lexer cannot read CUDA text, and Sphinx reports what a lexer cannot read. The lexer of a
notebook's cells is `ipython3` for the whole notebook, so the language is set cell by cell here.
"""

from docutils import nodes
from sphinx.transforms import SphinxTransform


class KernelCells(SphinxTransform):
    """Give each code block that begins with `%%kernel` the language `cuda`."""

    default_priority = 400  # before Sphinx highlights anything

    def apply(self):
        for block in self.document.findall(nodes.literal_block):
            if block.astext().lstrip().startswith("%%kernel"):
                block["language"] = "cuda"


def setup(app):
    app.add_transform(KernelCells)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
