"""Execute one notebook, as a program of its own so that a test can choose its surroundings.

    python run_chapter.py CHAPTER.ipynb OUTPUTS.json

Runs in the notebook's folder and writes the executed notebook as JSON. Exit code 1 and the error
on stderr if a cell raised.
"""

import sys
from pathlib import Path

sys.modules["rfc3987_syntax"] = None  # as in support/__init__.py, which is not imported here
import nbformat  # noqa: E402
from nbclient import NotebookClient  # noqa: E402
from nbclient.exceptions import CellExecutionError  # noqa: E402


def main(chapter, outputs):
    notebook = nbformat.read(chapter, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=300,
        resources={"metadata": {"path": str(Path(chapter).parent)}},
        extra_arguments=["--log-level=ERROR"],
    )
    try:
        client.execute()
    except CellExecutionError as error:
        sys.exit(str(error))
    finally:
        nbformat.write(notebook, outputs)


if __name__ == "__main__":
    main(*sys.argv[1:])
