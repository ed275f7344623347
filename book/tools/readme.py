"""The README's table, drawn from the recorded runs as the landing page's is.

    python -m tools.readme            write it between its markers   (make readme)
    python -m tools.readme --check    change nothing; exit code 1 if it differs
"""

import argparse
import sys
from pathlib import Path

from lesson.errors import LessonError
from lesson.show.headline import headline
from lesson.tables import Table

README = Path(__file__).resolve().parents[2] / "README.md"
BEGIN, END = "<!-- table: make readme -->\n", "<!-- end of the table -->\n"


def markdown(shown):
    """Markdown of a Table, or of a Sentence where nothing is recorded."""
    if not isinstance(shown, Table):
        return shown.text() + "\n"
    lines = [f"*{shown.title} ({shown.mark}: {shown.note})*", "",
             f"| {' | '.join(shown.columns)} |",
             "|---" + "|--:" * (len(shown.columns) - 1) + "|"]
    lines += [f"| {' | '.join(cells)} |" for cells, _ in shown.rows]
    return "\n".join([*lines, "", shown.footer]) + "\n"


def written(text):
    """The README's text with the table as it is now. Raises LessonError without its markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise LessonError(f"README.md needs the lines {BEGIN.strip()} and {END.strip()}")
    tables = "\n".join(markdown(shown) for shown in headline().parts)
    return f"{before}{BEGIN}\n{tables}\n{END}{after}"


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tools.readme", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, only say")
    check = parser.parse_args(argv).check
    text = README.read_text(encoding="utf-8")
    try:
        new = written(text)
    except LessonError as error:
        sys.exit(str(error))
    if new == text:
        return 0
    if check:
        print("README.md: its table is not that of the recorded runs (make readme writes it)")
        return 1
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
