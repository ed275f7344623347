"""Kernel text: snippets, edits, signatures."""
import re

import pytest
from lesson.errors import ArgumentError
from lesson.text import source
from lesson.text.source import lines_of


def test_snippets_cover_each_kernel_completely():
    assert list(source.snippets("online")) == ["tiles", "state", "load", "score", "update", "write"]
    for name in ("online", "materialised"):
        text = source.load(name).text
        rest = re.sub(r"^// snippet: \w+\n.*?^// end snippet$", "", text, flags=re.M | re.S)
        assert all(line.startswith("//") or not line for line in rest.splitlines())


@pytest.mark.parametrize("text, code", [
    ("a;  // b\n\n  /* c\n  d */\n  e;  \n", "a;\n  e;\n"),
    ('s = "// no /* comment";  // one\n', 's = "// no /* comment";\n'),
    ('s = "a\\"// b";\n', 's = "a\\"// b";\n'),
    ("c = '\"';  // one\n", "c = '\"';\n"),
    ("a;  // goes on \\\nb;\nc;\n", "a;\nc;\n"),
    ("// a block's rows\na;\n", "a;\n"),
])
def test_the_code_is_the_text_without_comments(text, code):
    assert source.code(text) == code


def test_unedited_text_is_the_file():
    loaded = source.load("online", {"score": source.snippets("online")["score"]})
    assert loaded.text == source.path_of("online").read_text() and not loaded.edits


def test_an_edit_keeps_line_numbers_of_the_rest():
    new = "    // mine\n" + source.snippets("online")["score"]
    edited = source.load("online", {"score": (new, "cell online/score")})
    original = source.load("online")
    assert edited.edits and edited.digest != original.digest
    lines = lines_of(edited)
    for number, line in enumerate(original.text.splitlines(), 1):
        if line.strip() and "snippet" not in line and line not in new:
            assert lines["online.cu", number] == line
    assert lines["cell online/score", 1] == "    // mine"


@pytest.mark.parametrize("name, edits", [("onlin", None), ("online", {"scores": ""})])
def test_unknown_names_are_told_the_known_ones(name, edits):
    with pytest.raises(ArgumentError, match="online|score"):
        source.load(name, edits)


@pytest.mark.parametrize("text, blanked", [
    ('a // {\nb', "a     \nb"), ('a /* {\n"*/ b', "a     \n    b"),
    ('f("}{", \'{\')', 'f("  ", \' \')'),
    ('"\\"{" {', '"   " {'), ("1'000'000 {", "1'000'000 {"), ('R"x({")x" {', "R       \" {"),
    ("a /* never {", "a           "), ("a // on \\\n{\nb", "a        \n \nb"),
])
def test_what_is_no_code_is_blanked_in_its_place(text, blanked):
    found = source.blanked(text)
    assert found.rstrip("\n") == blanked and len(found) == len(text)


@pytest.mark.parametrize("write, words", [
    (lambda text: text.encode("utf-16"), "as text in UTF-16 does"),
    (lambda text: text.encode("utf-16-le"), "as text in UTF-16 does"),
    (lambda text: f"\n\n// caf\u00e9\n{text}".encode("latin-1"),
     "line 3 has a letter that is no UTF-8 (byte 0xe9; in Latin-1 it would be '\u00e9')"),
])
def test_another_encoding_is_named_with_the_remedy(tmp_path, write, words):
    path = tmp_path / "mine.cu"
    path.write_bytes(write("__global__ void k() {}\n"))
    with pytest.raises(ArgumentError) as error:
        source.from_file(path)
    message = str(error.value)
    assert message.startswith("cannot read mine.cu: ") and words in message
    assert message.endswith("save it as UTF-8")


@pytest.mark.parametrize("data", [b"\xef\xbb\xbfa;\nb;\n", b"a;\r\nb;\r\n", b"a;\rb;\r"])
def test_a_byte_order_mark_and_line_ends_are_no_text(tmp_path, data):
    path = tmp_path / "mine.cu"
    path.write_bytes(data)
    assert source.from_file(path).text == "a;\nb;\n"


@pytest.mark.parametrize("name, label", [
    ('quo"te.cu', "quo'te.cu"), ("back\\slash.cu", "back/slash.cu"),
    ("new\nline.cu", "new line.cu"),
    ("\u00fcmlaut \u03bb.cu", "\u00fcmlaut \u03bb.cu")])
def test_a_name_is_one_that_a_compiler_can_give_back(tmp_path, name, label):
    path = tmp_path / name
    path.write_text("float x;\n")
    found = source.from_file(path)
    assert found.label == label
    assert source.lines_of(found)[label, 1] == "float x;"
    assert source.numbered(found) == f'#line 1 "{label}"\nfloat x;\n'


def test_a_folder_is_no_source(tmp_path):
    with pytest.raises(ArgumentError, match="cannot read .*: Is a directory"):
        source.from_file(tmp_path)
