"""``nsqpy token``: what it refuses, and what it says then."""

from pathlib import Path

import pytest

from nsqpy.tools.token import main

PROGRAM = "nsqpy token"


def make(file: Path, name: str) -> int:
    return main([f"--file={file}", f"--name={name}", "--role=publish", "--topic=>"], PROGRAM)


def test_a_name_that_is_taken(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    assert make(file, "billing") == 0
    before = file.read_text()
    capsys.readouterr()
    assert make(file, "billing") == 1
    printed = capsys.readouterr()
    reason = "billing has a token there already: remove its line, or take another name"
    assert printed.err == f"{PROGRAM}: {file}: {reason}\n"
    assert printed.out == ""
    assert file.read_text() == before


def test_a_file_that_is_out_of_order(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# tokens\nbilling\n")
    assert make(file, "ops") == 1
    expected = f"{PROGRAM}: {file}: line 2: must be: name hash roles topics\n"
    assert capsys.readouterr().err == expected
    assert file.read_text() == "# tokens\nbilling\n"
