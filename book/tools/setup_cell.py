# The first cell of every chapter: finds the lesson (in Colab, fetches it) and says what runs here.
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

REPOSITORY, REVISION = "", "main"  # make repository writes both, here and in _config.yml
places = [Path.cwd(), *Path.cwd().parents, Path.cwd() / "attention-two-ways"]
root = next((place for place in places if (place / "book/lesson").is_dir()), None)
if find_spec("google") and find_spec("google.colab"):
    if root is None and REPOSITORY:
        root = places[-1]
        clone = ["git", "clone", "-q", "--depth=1", f"--branch={REVISION}", REPOSITORY, root]
        subprocess.run(clone, check=True)
    if not find_spec("anywidget"):  # an old image: what is missing, and nothing it would move
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps"]
        subprocess.run([*pip, "anywidget", "psygnal"], check=True)
if root is None:
    raise RuntimeError("The lesson is not here: download this chapter from its page as 'one file'.")
os.chdir(root / "book")
sys.path.insert(0, os.getcwd())

import lesson

lesson.device()
