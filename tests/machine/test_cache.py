"""What is kept between processes: whole, private, bounded, and never needed."""

import os
import subprocess
import sys

import pytest
from lesson.machine import cache
from support import BOOK
from support.emulated import needs_compiler


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def entry(tmp_path, text="a program"):
    file = tmp_path / "kernel"
    file.write_text(text)
    return file


def test_an_entry_comes_back_as_it_was(home, tmp_path):
    to = tmp_path / "to"
    to.mkdir()
    name = cache.key("text", b"options")
    assert not cache.fetch(name, to)
    cache.keep(name, [entry(tmp_path)])
    assert cache.fetch(name, to) and (to / "kernel").read_text() == "a program"
    assert (home / ".cache" / cache.NAME).stat().st_mode & 0o777 == 0o700


def test_keys_hold_their_parts_apart():
    assert len({cache.key("ab", "c"), cache.key("a", "bc"), cache.key("abc"), cache.key("ab", "d"),
                cache.key("c", "ab")}) == 5


def test_a_damaged_entry_is_forgotten(home, tmp_path):
    cache.keep("name", [entry(tmp_path)])
    kept = home / ".cache" / cache.NAME / "name" / "kernel"
    kept.write_text("half a")
    assert not cache.fetch("name", tmp_path) and not kept.exists()


def test_two_processes_may_keep_the_same(home, tmp_path):
    cache.keep("name", [entry(tmp_path, "first")])
    cache.keep("name", [entry(tmp_path, "second")])
    assert cache.fetch("name", tmp_path)
    assert [path.name for path in (home / ".cache" / cache.NAME).iterdir()] == ["name"]


def test_the_oldest_entries_go(home, tmp_path):
    for i in range(6):
        cache.keep(f"name{i}", [entry(tmp_path, "x" * 1000)])
        os.utime(home / ".cache" / cache.NAME / f"name{i}", (i, i))
    top = home / ".cache" / cache.NAME
    assert cache.fetch("name0", tmp_path)  # used just now
    cache.prune(top, 3 * 1100)
    assert {path.name for path in top.iterdir()} == {"name0", "name4", "name5"}


@pytest.mark.parametrize("spoil", ["no home", "no folder", "for all"])
def test_without_a_folder_nothing_is_kept(home, tmp_path, monkeypatch, spoil):
    if spoil == "no home":
        monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    elif spoil == "no folder":
        (home / ".cache").write_text("a file in its place")
    else:  # anybody may write there: what lies in it could be anybody's
        (home / ".cache" / cache.NAME).mkdir(parents=True)
        (home / ".cache" / cache.NAME).chmod(0o777)
    assert cache.folder() is None
    cache.keep("name", [entry(tmp_path)])
    assert not cache.fetch("name", tmp_path)


def test_the_folder_may_be_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    assert cache.folder() == tmp_path / "mine" / cache.NAME


TRIAL = """
import numpy as np
from lesson.machine import emulator
from lesson.text import source
h = emulator.HostBackend()
x = h.full((4,), np.nan)
text = 'extern "C" __global__ void f(float* x) { x[threadIdx.x] = BLOCK + threadIdx.x; }'
h.compile(source.from_text(text), {"BLOCK": 3}).launch("f", (1,), (4,), (x,))
print(h.get(x), open(h.compile(source.from_text(text), {"BLOCK": 3})._built.folder
                     / "facts.json").read()[:12])
"""


@needs_compiler
def test_a_second_process_compiles_nothing(home, tmp_path):
    """The compiler is found by its name, and says its version, but is not asked to compile."""
    real = subprocess.run(["which", os.environ.get("CXX") or "g++"], capture_output=True, text=True)
    log, wrapper = tmp_path / "log", tmp_path / "compiler"
    wrapper.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {real.stdout.strip()} "$@"\n')
    wrapper.chmod(0o755)
    calls = []
    for _ in range(2):
        log.write_text("")
        done = subprocess.run([sys.executable, "-c", TRIAL], cwd=BOOK, capture_output=True,
                              text=True, timeout=120, env={**os.environ, "CXX": str(wrapper)})
        assert "[3. 4. 5. 6.]" in done.stdout, done.stderr
        calls.append(log.read_text().splitlines())
    assert len(calls[0]) > 3 and calls[1] == ["--version"]
