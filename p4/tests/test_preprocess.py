"""Preprocessing: includes, macros, conditions, and where everything was written."""

from pathlib import Path

import pytest

from p4vm.front.preprocess import Preprocessed, preprocess, preprocess_text
from p4vm.source import P4Error


def words(result: Preprocessed) -> str:
    return " ".join(result.text.split())


def place(result: Preprocessed, text: str) -> str:
    return str(result.position(result.text.index(text)))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("#define W 8\nbit<W> a;", "bit<8> a;"),
        ("#define F(a, b) a + b\nF(1, (2, 3))", "1 + (2, 3)"),
        ("#define V(i) v##i\nV(0) V(17)", "v0 v17"),
        ("#define W(n) 8w##n\nW(5)", "8w5"),
        ("#define S(x) #x\nS(a b)", '"a b"'),
        ("#define TWICE(x) x x\n#define AGAIN(x) TWICE(TWICE(x))\nAGAIN(y)", "y y y y"),
        ("#define A B\n#define B A\nA", "A"),
        ("#define F(x) x\nF", "F"),
        ("#define M \\\n one \\\n two\nM", "one two"),
        ("#define A 1\n#undef A\nA", "A"),
        ("#ifdef A\nyes\n#else\nno\n#endif", "no"),
        ("#define A\n#ifdef A\nyes\n#else\nno\n#endif", "yes"),
        ("#if 0\na\n#elif 2 > 1 && defined(X)\nb\n#elif !defined(X)\nc\n#else\nd\n#endif", "c"),
        ("#if 0\n#error never read\n#if 1\nx\n#endif\n#endif\ny", "y"),
        ("#ifndef G\n#define G\nonce\n#endif\n#ifndef G\ntwice\n#endif", "once"),
        ("a /* b \n c */ d // e\nf", "a d f"),
        ("__LINE__\n__LINE__", "1 2"),
        ("__FILE__", '"prog.p4"'),
        ('"#define /* kept */"', '"#define /* kept */"'),
        ("h = {#};", "h = {#};"),
        ("a |+| b |-| c ++ d &&& e +: f .. g", "a |+| b |-| c ++ d &&& e +: f .. g"),
        ("#define P +\na+P b", "a+ + b"),
        ("#pragma once\n#warning look out\nx", "x"),
    ],
)
def test_text(source: str, expected: str) -> None:
    assert words(preprocess_text(source, "prog.p4")) == expected


def test_definitions_from_outside() -> None:
    result = preprocess_text("W F(3) EMPTY.", defines={"W": 9, "F(x)": "x x", "EMPTY": ""})
    assert words(result) == "9 3 3 ."


def test_places_are_those_of_the_author() -> None:
    source = "#define ADD(a, b) a + b\n\n  one; /* c\n c */ two;\n x = ADD(left,\n    right); three\n"
    result = preprocess_text(source, "prog.p4")
    assert place(result, "one") == "prog.p4:3:3"
    assert place(result, "two") == "prog.p4:4:7"
    assert place(result, "left") == "prog.p4:5:10"
    assert place(result, "right") == "prog.p4:6:5"
    assert place(result, "+") == "prog.p4:5:6"  # of the macro's use
    assert place(result, "three") == "prog.p4:6:13"


def test_line_directives_move_places() -> None:
    result = preprocess_text('a\n#line 70 "made.p4"\nb\n c\n# 5 "other.p4"\nd', "prog.p4")
    assert [place(result, name) for name in "abcd"] == ["prog.p4:1:1", "made.p4:70:1", "made.p4:71:2", "other.p4:5:1"]


def test_includes_from_own_folder_given_folders_and_the_engines_own(tmp_path: Path) -> None:
    (tmp_path / "lib" / "deep").mkdir(parents=True)
    (tmp_path / "main.p4").write_text(
        '#include <core.p4>\n#include "near.p4"\n#include <far.p4>\n#define N "near.p4"\n#include N\n'
    )
    (tmp_path / "near.p4").write_text("near;\n")
    (tmp_path / "lib" / "far.p4").write_text('#include "deep/down.p4"\nfar;\n')
    (tmp_path / "lib" / "deep" / "down.p4").write_text("  down;\n")
    result = preprocess(tmp_path / "main.p4", includes=[tmp_path / "lib"])
    assert words(result).endswith("near; down; far; near;")
    assert "extern packet_in" in result.text
    assert place(result, "down").endswith("lib/deep/down.p4:1:3")
    assert [Path(name).name for name in result.files] == ["main.p4", "core.p4", "near.p4", "far.p4", "down.p4"]


def test_warnings_are_kept_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    result = preprocess_text("\n #warning old form\n", "prog.p4")
    assert result.warnings == ("prog.p4:2:3: #warning old form",)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("x\n  #error no such target\n", "prog.p4:2:4: #error no such target"),
        ("\n#include", "prog.p4:2:2: #include: expected <file> or"),
        ("#include core.p4", 'prog.p4:1:2: #include core: expected <file> or "file"'),
        ("#if 1\n", "prog.p4:1:2: unterminated #if 1"),
        ("#endif", "prog.p4:1:2: misplaced #endif"),
        ("a\n#else", "prog.p4:2:2: misplaced #else"),
        ("#ifdef", "prog.p4:1:2: #ifdef: expected the name of a macro after it"),
        ("#define", "prog.p4:1:2: #define: expected the name"),
        ("#if 1 +", "prog.p4:1:2: the condition can't be evaluated: 1 +"),
        ("#define F(a, b) a\nF(1)", "prog.p4:2:1: macro F requires 2 arguments but was passed 1"),
        ("#frobnicate", "prog.p4:1:2: unknown directive #frobnicate; expected define"),
        ("#line x", "prog.p4:1:2: #line: expected a line number"),
        ("#include <nowhere.p4>", "prog.p4:1:2: #include: no file 'nowhere.p4' in ., "),
        ('#include "prog.p4"', "prog.p4:1:2: #include: no file 'prog.p4' in "),
    ],
)
def test_errors(source: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(P4Error) as caught:
        preprocess_text(source, "prog.p4")
    assert str(caught.value).startswith(error)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", ["20000101", "20990101", "-6419018"])
def test_unknown_versions_of_v1model_are_an_error(version: str) -> None:
    with pytest.raises(P4Error, match="V1MODEL_VERSION is unknown; the first is 20180101, the latest 20200408"):
        preprocess_text(f"#define V1MODEL_VERSION {version}\n#include <v1model.p4>\n", "prog.p4")


def test_a_missing_include_names_the_folders_searched(tmp_path: Path) -> None:
    (tmp_path / "main.p4").write_text('#include "gone.p4"')
    with pytest.raises(P4Error, match=r"no file 'gone.p4' in .*; name its folder with -I") as caught:
        preprocess(tmp_path / "main.p4", includes=[tmp_path / "lib"])
    assert str(tmp_path / "lib") in str(caught.value)
    assert str(tmp_path) + "," in str(caught.value)


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(P4Error, match=r"none\.p4: can't read it"):
        preprocess(tmp_path / "none.p4")
    with pytest.raises(P4Error, match="can't read it"):
        preprocess(tmp_path)


def test_bytes_that_are_no_utf8_reach_the_parser(tmp_path: Path) -> None:
    (tmp_path / "main.p4").write_bytes(b"\xef\xbb\xbfa \xff\x00 b")
    assert preprocess(tmp_path / "main.p4").text.split()[0] == "a"


def test_runaway_programs_are_stopped(tmp_path: Path) -> None:
    (tmp_path / "main.p4").write_text('#include "main.p4"')
    with pytest.raises(P4Error, match="includes nest deeper"):
        preprocess(tmp_path / "main.p4")
    doubling = "#define A0 x\n" + "".join(f"#define A{n} A{n - 1} A{n - 1}\n" for n in range(1, 40))
    with pytest.raises(P4Error, match="macros expand to more than"):
        preprocess_text(doubling + "A39")
    chain = "#define A0 x\n" + "".join(f"#define A{n} A{n - 1}\n" for n in range(1, 3000))
    with pytest.raises(P4Error, match="nest too deeply"):
        preprocess_text(chain + "A2999")


@pytest.mark.parametrize("name", ["3x", "a b", "", "a-b"])
def test_a_definition_needs_a_name(name: str) -> None:
    with pytest.raises(P4Error, match="expected the name of a macro"):
        preprocess_text("x", defines={name: "1"})
