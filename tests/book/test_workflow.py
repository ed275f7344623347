"""The Pages workflow: what can be tried of it without GitHub."""

import os
import subprocess

import pages
import yaml
from support import ROOT

WORKFLOW = ROOT / ".github/workflows/pages.yml"


def steps():
    return yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]["book"]["steps"]


def run_of(word):
    """The commands of the one step whose commands have ``word`` in them."""
    (found,) = [step["run"] for step in steps() if word in step.get("run", "")]
    return found


def shell(commands, folder, **environment):
    return subprocess.run(["bash", "-eo", "pipefail", "-c", commands], cwd=folder, text=True,
                          check=True, capture_output=True, env={**os.environ, **environment}).stdout


def test_the_address_is_the_repository_s_own_and_comes_before_the_build():
    runs = [step.get("run", "") for step in steps()]
    (address,) = [i for i, run in enumerate(runs) if "make repository" in run]
    assert address < runs.index("make book")
    made = shell(f"make() {{ printf '%s\\n' \"$@\"; }}; {runs[address]}", ROOT,
                 GITHUB_SERVER_URL="https://github.com", GITHUB_REPOSITORY="someone/a-fork",
                 GITHUB_REF_NAME="main")
    assert made.splitlines() == ["repository", "URL=https://github.com/someone/a-fork",
                                 "REVISION=main"]


def test_the_one_file_chapters_are_put_on_the_branch_that_the_pages_open(tmp_path):
    origin, clone = tmp_path / "origin.git", tmp_path / "clone"
    shell(f"git init -q --bare {origin}; git clone -q {origin} {clone} 2>&1", tmp_path)
    who = "git -c user.name=a -c user.email=a@example.org"
    shell("printf '_build/\\n' > .gitignore; git add .; "
          f"{who} commit -qm first; git push -q origin HEAD:main", clone)
    folder = clone / "_build/html/one-file"
    folder.mkdir(parents=True)
    for text in ("old", "new"):  # a second run replaces what the first one published
        (folder / f"{text}.ipynb").write_text(text)
        shell(run_of("refs/heads"), clone, RUNNER_TEMP=str(tmp_path), GITHUB_SHA="abc123")
        (folder / f"{text}.ipynb").unlink()
    branch = pages.COLAB_BRANCH
    listed = shell(f"git ls-tree --name-only {branch}; git show {branch}:new.ipynb", origin)
    assert listed == "new.ipynb\nnew"
    assert "abc123" in shell(f"git log -1 --format=%s {branch}", origin)
    assert shell("git status --short", clone) == ""  # the checkout is left as it was


def test_the_workflow_may_write_its_branch_and_its_pages():
    found = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["permissions"]
    assert found == {"contents": "write", "pages": "write", "id-token": "write"}
