"""The README's table is that of the recorded runs."""

import pytest
from lesson.errors import LessonError
from lesson.measure import evidence
from tools import readme


def test_the_readme_holds_the_table_of_the_recorded_runs():
    text = readme.README.read_text(encoding="utf-8")
    assert readme.written(text) == text, "make readme writes it"


def test_the_table_has_the_pair_the_win_and_pytorch_with_their_gates():
    item = evidence.latest()["H200"]
    text = readme.written(readme.BEGIN + readme.END)
    times = {t.what: t.median_ms for t in item.times if t.n == 4096}
    for ms in times["materialised"], times["online"]:
        assert f" {ms:.3f} " in text
    torch = [r for r in item.bench.rows if (r.n, r.heads) == (4096, 1) and "PyTorch" in r.what]
    assert len(torch) == 3
    for row in torch:
        assert f"| {row.what} | {row.median_ms:.3f} |" in text
        assert f" {row.fraction:.3f} |" in text
    assert text.count("\n| ") == 3 + 3 + len(torch) - 1  # a head, the pair, the wins, PyTorch


def test_an_old_table_is_named_and_repaired(tmp_path, monkeypatch, capsys):
    copy = tmp_path / "README.md"
    copy.write_text(f"# A\n\n{readme.BEGIN}\n| old |\n\n{readme.END}\nThe end.\n")
    monkeypatch.setattr(readme, "README", copy)
    assert readme.main(["--check"]) == 1 and "make readme" in capsys.readouterr().out
    assert "| old |" in copy.read_text()
    assert readme.main([]) == 0 and readme.main(["--check"]) == 0
    text = copy.read_text()
    assert text.startswith("# A\n") and text.endswith("The end.\n") and "| old |" not in text


def test_without_markers_it_says_so():
    with pytest.raises(LessonError, match="table: make readme"):
        readme.written("# A\n")


def test_changed_kernels_make_the_table_stale(monkeypatch):
    monkeypatch.setattr(evidence.Evidence, "stale", lambda self, names=(): ["online"])
    assert "(stale: H200" in readme.written(readme.BEGIN + readme.END)
