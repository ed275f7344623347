"""What a page needs beside its text: a description, links to its notebook, tables that scroll."""

import base64
import html
import re
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

from docutils import nodes
from pygments.formatters import HtmlFormatter
from pygments.styles import get_style_by_name
from sphinx import addnodes
from sphinx.transforms.post_transforms import SphinxPostTransform

LIGHT, DARK = "a11y-high-contrast-light", "github-dark"
WITHOUT_TEXT = {  # descriptions of the pages that no file of the book makes
    "search": "Look for a word in all chapters of the lesson.",
    "404": "There is no page at this address of the lesson.",
}
# Without a font that has a MATH table primes and big signs go wrong, and many systems have none.
# It is inside the style sheet: so it is there for the first paint and nothing moves, and a page
# opened from disk has it too (a browser refuses a font file there).
FONT = """@font-face {{ font-family: "STIX Two Math";
  src: url(data:font/woff2;base64,{}) format("woff2"); }}
"""
REDIRECT = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="refresh" content="0; url={url}"><link rel="canonical" href="{url}">
<meta name="viewport" content="width=device-width, initial-scale=1"></head>
<body><main><h1>{title}</h1><p><a href="{url}">{link}</a></p></main></body></html>
"""
# Addresses that pages had, and may be linked to: each leads to the page that it is now.
RENAMED = {
    "book/01-the-score-matrix": "book/the-score-matrix",
    "book/02-the-materialised-path": "book/the-materialised-path",
    "book/03-the-online-maximum": "book/the-online-maximum",
    "book/04-the-online-kernel": "book/the-online-kernel",
    "book/05-the-gated-table": "book/the-gated-table",
    "book/06-the-ladder": "book/the-ladder",
    "book/07-exercises": "book/exercises",
    "book/08-playground": "book/playground",
}
WORDS_A_MINUTE = 200
COLAB_BRANCH = "colab"


class ScrollingTables(SphinxPostTransform):
    """Put each Markdown table into a box that scrolls by itself, with a name.

    Markdown has no captions: a paragraph in *italics* directly above a table becomes its caption.
    """

    default_priority = 200
    formats = ("html",)

    def run(self, **kwargs):
        for number, table in enumerate(list(self.document.findall(nodes.table)), 1):
            parent, index = table.parent, table.parent.index(table)
            before = parent[index - 1] if index else None
            if isinstance(before, nodes.paragraph) and len(before) == 1:
                if isinstance(before[0], nodes.emphasis):
                    table.insert(0, nodes.title("", "", *before[0].children))
                    self.document.set_id(table)  # Sphinx wants one on a table with a caption
                    parent.remove(before)
            title = next(table.findall(nodes.title), None)
            name = title.astext() if title else f"Table {number}"
            opening = (
                '<div class="lesson-scroll" role="region" tabindex="0" '
                f'aria-label="{html.escape(name)}">'
            )
            index = parent.index(table)  # not replace_self: it moves the table's classes
            parent[index : index + 1] = [
                nodes.raw("", opening, format="html"),
                table,
                nodes.raw("", "</div>", format="html"),
            ]


def pages_address(repository):
    """Where GitHub Pages serves a repository, '' for any other address."""
    found = re.fullmatch(r"https://github\.com/([^/]+)/([^/]+?)(?:\.git)?/?", repository)
    return f"https://{found[1]}.github.io/{found[2]}/" if found else ""


def set_address(app, config):
    """The published address follows from the repository's, so that it is set once."""
    repository = config.html_theme_options.get("repository_url") or ""
    if not config.html_baseurl:
        config.html_baseurl = pages_address(repository)


def description(doctree, pagename):
    """The first paragraph, cut at a word to what a result page or a chat shows."""
    paragraph = next(doctree.findall(nodes.paragraph), None) if doctree else None
    text = " ".join(paragraph.astext().split()) if paragraph else WITHOUT_TEXT.get(pagename, "")
    if len(text) > 200:
        text = text[:200].rsplit(" ", 1)[0] + " …"
    return text


def fill_context(app, pagename, templatename, context, doctree):
    config = app.config
    source = Path(app.env.doc2path(pagename)) if pagename in app.env.found_docs else None
    context["description"] = description(doctree, pagename)
    context["base"] = config.html_baseurl
    context["provenance"] = "book/provenance"
    preview = "_static/preview.png"
    context["preview"] = (config.html_baseurl + preview) or context["pathto"](preview, 1)
    context["preview_alt"] = "Bars of scores with a late spike that moves the running maximum"
    # Sphinx gives a navigation's captions the role of headings; they would come before the first.
    toctree = context["toctree"]
    context["toctree"] = lambda **kw: (toctree(**kw) or "").replace(' role="heading"', "")
    context["maths"] = "<math" in context.get("body", "")
    if "body" in context:
        # A code block may scroll, so the keyboard must reach it.
        context["body"] = distinct(context["body"]).replace(
            '<div class="highlight"><pre>', '<div class="highlight"><pre tabindex="0">'
        )
    if source is None:
        return
    if source.suffix == ".ipynb":
        context["notebook"] = source.name
        context["reading"] = reading(doctree)
        context["colab_url"] = colab(app, source)
    options = config.html_theme_options
    if options.get("repository_url"):
        file = source.relative_to(app.srcdir).as_posix()
        branch = options["repository_branch"]
        context["edit_url"] = f"{options['repository_url']}/edit/{branch}/{file}"
    if pagename == config.root_doc:
        context["doors"] = doors(app)


def distinct(body):
    """The page with a number behind a region's name that an earlier one has: a cell run twice."""
    seen = Counter()

    def number(match):
        seen[match[2]] += 1
        again = f" ({seen[match[2]]})" if seen[match[2]] > 1 else ""
        return f'{match[1]}{match[2]}{again}"'

    return re.sub(r'(role="region"[^>]*? aria-label=")([^"]*)"', number, body)


def colab(app, source):
    """The address that opens a chapter as one file in Colab, which takes GitHub's alone.

    The file is on the branch that .github/workflows/pages.yml writes. None until the book has a
    repository's address.
    """
    options = app.config.html_theme_options
    found = re.fullmatch(r"https://github\.com/([^/]+/[^/]+)", options.get("repository_url") or "")
    at = f"{COLAB_BRANCH}/{source.name}"
    return found and f"https://colab.research.google.com/github/{found[1]}/blob/{at}"


def doors(app):
    """Read, Colab, edit: the three ways in that the landing page shows."""
    parts = [[Path(app.env.doc2path(name)) for name in names if is_chapter(app, name)]
             for names in in_order(app)]
    parts = [paths for paths in parts if paths]
    if not parts:
        return []
    first = parts[0][0]
    edit = next((path for paths in parts for path in paths if path.stem == "playground"), first)
    minutes = sum(reading(app.env.get_doctree(f"book/{path.stem}"))[0] for path in parts[0])
    return [
        {
            "name": "Read",
            "link": f"{first.stem}.html",
            "text": f"The first {len(parts[0])} chapters take about {minutes} minutes and are "
            "complete in themselves: you may stop there. Install nothing: every result is on the "
            "page.",
        },
        {
            "name": "Run in Colab",
            "link": colab(app, first) or f"../one-file/{first.name}",
            "text": "Open a chapter on a T4, choose Run all, and the numbers become your own."
            if colab(app, first)
            else "Download a chapter as one file and upload it to Colab: the numbers become "
            "your own.",
        },
        {
            "name": "Edit a kernel",
            "link": f"{edit.stem}.html",
            "text": "Change a line of CUDA and see at once whether it still computes attention.",
        },
    ]


def in_order(app):
    """The names of the pages, part by part, in the order of the table of contents."""
    trees = app.env.get_doctree(app.config.root_doc).findall(addnodes.toctree)
    return [[name for _, name in tree["entries"]] for tree in trees]


def is_chapter(app, name):
    return name in app.env.found_docs and app.env.doc2path(name).endswith(".ipynb")


def reading(doctree):
    """(minutes, cells): how long the words of a page take, and how many code cells it has.

    Counted are the words of its text, and of a rung's header and story, which a cell puts out.
    Code, formulas, tables and figures are not.
    """
    def counted(text):
        return not any(isinstance(element, nodes.math) or "cell" in element.get("classes", ())
                       for element in lineage(text))

    words = sum(len(text.split()) for paragraph in doctree.findall(nodes.paragraph)
                for text in paragraph.findall(nodes.Text) if counted(text))
    for output in doctree.findall(nodes.raw):
        if 'class="lesson-header"' in (text := output.astext()):
            told = " ".join(found[1] for found in re.finditer(r"<(?:dd|p)\b[^>]*>(.*?)</", text))
            words += len(re.sub(r"<[^>]*>", " ", told).split())
    cells = sum("cell" in box["classes"] for box in doctree.findall(nodes.container))
    return max(1, round(words / WORDS_A_MINUTE)), cells


def lineage(node):
    """The elements around a node, innermost first."""
    while (node := node.parent) is not None:
        yield node


def code_styles():
    """One style sheet for code in both themes: each token in its light and its dark colour."""
    light, dark = get_style_by_name(LIGHT), get_style_by_name(DARK)
    formatter = HtmlFormatter(style=light)
    rules = []
    for token, style in light:
        name = formatter._get_css_class(token)
        other = dark.style_for_token(token)
        if not name:
            continue
        rule = ""
        if style["color"] and other["color"]:
            rule += f"color:light-dark(#{style['color']},#{other['color']});"
        if style["bold"]:
            rule += "font-weight:bold;"
        if style["italic"]:
            rule += "font-style:italic;"
        if rule:
            rules.append(f".highlight .{name}{{{rule}}}")
    return "\n".join(rules) + "\n"


def names_of(name):
    """A page's name, and those that it had."""
    return [name, *(old for old, new in RENAMED.items() if new == name)]


class Links(HTMLParser):
    """Every address that a page names."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        if tag != "link":
            self.found += [v for k, v in attrs if k in ("href", "src") and v]


def write_extras(app, exception):
    """Write the redirect at the root, the colours, and each chapter's notebook."""
    if exception or app.builder.format != "html":
        return
    out = Path(app.outdir)
    root = app.builder.get_target_uri(app.config.root_doc)
    (out / "index.html").write_text(
        REDIRECT.format(title=html.escape(app.config.html_title), url=root,
                        link="Start at the first page"), encoding="utf8"
    )
    for old, new in RENAMED.items():
        if new in app.env.found_docs:
            title = html.escape(app.env.titles[new].astext())
            page = REDIRECT.format(title=title, url=f"{Path(new).name}.html",
                                   link=f"This page has moved: {title}")
            (out / f"{old}.html").write_text(page, encoding="utf8")
    colours = Path(app.srcdir, "book/lesson/show/colours.css").read_text(encoding="utf8")
    (out / "_static/pygments.css").write_text(colours + code_styles(), encoding="utf8")
    font = Path(app.srcdir, "book/_static/stix-two-math.woff2").read_bytes()
    rule = FONT.format(base64.b64encode(font).decode())
    (out / "_static/maths.css").write_text(rule, encoding="utf8")
    for name in app.env.found_docs:
        source = Path(app.env.doc2path(name))
        if source.suffix == ".ipynb":
            for place in names_of(name):
                shutil.copyfile(source, out / f"{place}.ipynb")


def tidy(app, exception):
    """List the links that leave the site, and leave out assets that no page uses."""
    if exception or app.builder.format != "html":
        return
    out = Path(app.outdir)
    external, text = {}, ""
    for page in sorted(out.rglob("*.html")):
        text += (content := page.read_text(encoding="utf8"))
        links = Links()
        links.feed(content)
        for link in links.found:
            if link.startswith(("http://", "https://")):
                external.setdefault(link, set()).add(page.relative_to(out).as_posix())
    (out / "external-links.txt").write_text(
        "".join(f"{link}  {' '.join(sorted(external[link]))}\n" for link in sorted(external)),
        encoding="utf8",
    )
    for file in sorted((out / "_static").rglob("*"), reverse=True):
        if file.is_file() and f"_static/{file.relative_to(out / '_static').as_posix()}" not in text:
            file.unlink()
        elif file.is_dir() and not any(file.iterdir()):
            file.rmdir()


def setup(app):
    # Jupyter Book sets it for sphinx-comments, which this book leaves out; unknown values warn.
    app.add_config_value("comments_config", {}, "html")
    app.add_post_transform(ScrollingTables)
    app.connect("config-inited", set_address)
    app.connect("html-page-context", fill_context)
    app.connect("build-finished", write_extras, priority=400)  # before Jupyter Book's redirect
    app.connect("build-finished", tidy, priority=900)  # after every extension has copied its own
    return {"parallel_read_safe": True, "parallel_write_safe": True}
