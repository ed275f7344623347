"""Run the chapters, two at a time, and never publish an old output.

jupyter-cache compares a notebook's code cells and nothing else, so an edited kernel or helper would
leave old output on the page. Here the cache lives in a folder named by a digest of everything that
a chapter runs: another digest is another, empty cache.
"""

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.executors.utils import single_nb_execution
from sphinx.errors import SphinxError
from sphinx.util import logging

INPUTS = ("kernels", "book/lesson", "book/evidence", "_config.yml")
WORKERS = 2  # chapters at once; each has a kernel process of its own

log = logging.getLogger(__name__)


def packages(root):
    """{'name==version'} of what requirements.txt brings, and no tools that happen to be there."""
    found = {}
    todo = (Path(root) / "requirements.txt").read_text(encoding="utf8").splitlines()
    while todo:
        name = re.match(r"[\w.-]*", todo.pop())[0].lower()
        if name and name not in found:
            try:
                there = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                continue  # of another platform
            found[name] = f"{name}=={there.version}"
            todo += [line for line in there.requires or [] if "extra ==" not in line]
    return set(found.values())


def digest(root):
    """A hex digest of the files, packages, compiler and GPU that chapters under `root` run with."""
    seen = hashlib.sha256()
    for entry in INPUTS:
        path = Path(root, entry)
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                seen.update(f"{file.relative_to(root)}\0".encode())
                seen.update(hashlib.sha256(file.read_bytes()).digest())
    facts = [sys.version, *sorted(packages(root)), os.environ.get("CXX", "")]
    commands = [[tool, "--version"] for tool in ("c++", "g++", "clang++")] + [["nvidia-smi", "-L"]]
    for command in commands:
        if shutil.which(command[0]):
            facts.append(subprocess.run(command, capture_output=True, text=True).stdout)
    seen.update("\n".join(facts).encode())
    return seen.hexdigest()[:16]


def choose_cache(app, config):
    """Point myst-nb at the cache of this digest, and drop those of others."""
    caches = Path(app.outdir).parent / "executed"
    config.nb_execution_cache_path = str(caches / digest(app.srcdir))
    for old in caches.glob("*"):
        if old != Path(config.nb_execution_cache_path):
            shutil.rmtree(old)


def execute(app, env, docnames):
    """Fill the cache, several chapters at a time; myst-nb then finds every one in it."""
    os.environ["LESSON_SEED"] = "1"  # exercises draw new inputs each time, but not for a page
    cache = get_cache(app.config.nb_execution_cache_path)
    todo = []
    for name in sorted(docnames):
        path = Path(env.doc2path(name))
        if path.suffix == ".ipynb":
            notebook = nbformat.read(path, as_version=4)
            try:
                cache.match_cache_notebook(notebook)
            except KeyError:
                todo.append((path, notebook))

    def run(job):
        path, notebook = job
        log.info("executing %s", path.name)
        return single_nb_execution(
            notebook,
            cwd=str(path.parent),
            timeout=app.config.nb_execution_timeout,
            allow_errors=False,
            # It warns about plain TCP; this one listens on loopback for the time of a chapter.
            extra_arguments=["--log-level=ERROR"],
        )

    with ThreadPoolExecutor(WORKERS) as pool:
        results = list(pool.map(run, todo))
    failed = []
    for (path, notebook), result in zip(todo, results, strict=True):
        if result.err is not None:
            failed.append(f"{path.name}: {result.err}")
            continue
        log.info("executed %s in %.1f s", path.name, result.time)
        bundle = CacheBundleIn(notebook, str(path), data={"execution_seconds": result.time})
        cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
    if failed:
        raise SphinxError("a cell of a chapter raised\n\n" + "\n\n".join(failed))


def outdated(app, env, added, changed, removed):
    """Read every page again: its cells may have run against other kernels since."""
    return sorted(env.found_docs)


def setup(app):
    app.connect("config-inited", choose_cache)
    app.connect("env-get-outdated", outdated)
    app.connect("env-before-read-docs", execute)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
