"""The repository's address, kept once in ``_config.yml`` and copied into every setup cell.

    make repository URL=https://github.com/OWNER/NAME REVISION=main

writes it there, into ``setup_cell.py``, and with that into the first code cell of every chapter.
"""

import argparse
import re
import sys
from pathlib import Path

from lesson.errors import ArgumentError, LessonError

from . import notebooks

CONFIG = Path(__file__).resolve().parents[2] / "_config.yml"

_SETTING = re.compile(r'^(repository:\n(?:  .*\n)*?  url: )"([^"]*)"'
                      r'(.*\n(?:  .*\n)*?  branch: )(\S+)', re.M)
_LINE = re.compile(r'^REPOSITORY, REVISION = "([^"]*)", "([^"]*)"(.*)$', re.M)


def configured(text):
    """(url, revision) that the text of a ``_config.yml`` sets."""
    found = _SETTING.search(text)
    if not found:
        raise LessonError('_config.yml needs a block "repository:" with url: "..." and branch: ...')
    return found[2], found[4]


def in_cell(text):
    """(url, revision) that the text of a setup cell holds."""
    found = _LINE.search(text)
    if not found:
        raise LessonError("setup_cell.py has no line REPOSITORY, REVISION = ...")
    return found[1], found[2]


def with_address(text, url, revision):
    """The text of a setup cell with another address in it."""
    return _LINE.sub(lambda m: f'REPOSITORY, REVISION = "{url}", "{revision}"{m[3]}', text)


def check(url, revision):
    """Refuse what git could not clone without an account, or what would break a quoted string."""
    if url and not re.fullmatch(r"(https|file)://[^\s\"'\\]+", url):
        raise ArgumentError(f"URL = {url!r}: needs an address that anyone can clone, such as "
                            "https://github.com/OWNER/NAME, or nothing to unset it")
    if not re.fullmatch(r"\w[\w./+-]*", revision):
        raise ArgumentError(f"REVISION = {revision!r}: needs a branch or a tag, such as main")


def write(url, revision):
    """Set the address in ``_config.yml``, in ``setup_cell.py`` and in every chapter."""
    check(url, revision)
    url = url.rstrip("/").removesuffix(".git")  # launch links are made from it
    config, cell = (path.read_text(encoding="utf-8") for path in (CONFIG, notebooks.SETUP))
    configured(config), in_cell(cell)  # both must be found before either is written
    config = _SETTING.sub(lambda m: f'{m[1]}"{url}"{m[3]}{revision}', config)
    CONFIG.write_text(config, encoding="utf-8")
    notebooks.SETUP.write_text(with_address(cell, url, revision), encoding="utf-8")
    notebooks.main([])


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m tools.repository", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", metavar="URL", help="where anyone can clone it; '' unsets it")
    parser.add_argument("revision", metavar="REVISION", help="a branch or a tag")
    arguments = parser.parse_args(argv)
    try:
        write(arguments.url, arguments.revision)
    except LessonError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
