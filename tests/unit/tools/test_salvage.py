"""What ``nsqpy salvage`` prints, and how it ends."""

import json
from pathlib import Path

import pytest

from nsqpy.tools.salvage import main
from tests.unit.storage.original_files import record

FILE = "t.diskqueue.000000.dat"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / FILE
    path.write_bytes(record(1, b"one", attempts=2) + record(2, b"a\nb \xff"))
    return path


def run(capfdbinary: pytest.CaptureFixture[bytes], *arguments: str) -> tuple[int, bytes, str]:
    try:
        status = main(arguments, "nsqpy salvage")
    except SystemExit as exit:
        status = int(str(exit.code))
    printed = capfdbinary.readouterr()
    return status, printed.out, printed.err.decode()


def test_a_line_a_message(capfdbinary: pytest.CaptureFixture[bytes], data: Path) -> None:
    status, out, err = run(capfdbinary, str(data))
    assert status == 0
    assert out.decode().splitlines() == [
        "2023-11-14T22:13:20.000000001Z  0000000000000001  2  3  one",
        "2023-11-14T22:13:20.000000002Z  0000000000000002  0  5  a\ufffdb \ufffd",
    ]
    assert err == "nsqpy salvage: read 2 messages of 1 file\n"


def test_json(capfdbinary: pytest.CaptureFixture[bytes], data: Path) -> None:
    status, out, _ = run(capfdbinary, "--json", str(data))
    first, second = map(json.loads, out.splitlines())
    assert status == 0
    assert first == {
        "path": str(data),
        "offset": 0,
        "id": "0000000000000001",
        "timestamp_ns": 1_700_000_000_000_000_001,
        "attempts": 2,
        "deliver_at_ns": 0,
        "verified": False,
        "body": "one",
    }
    assert second["body_base64"] == "YQpiIP8="
    assert second["offset"] == 33


def test_bodies(capfdbinary: pytest.CaptureFixture[bytes], data: Path) -> None:
    assert run(capfdbinary, "--bodies", str(data))[:2] == (0, b"one\na\nb \xff\n")


def test_damage_is_told_and_decides_the_status(
    capfdbinary: pytest.CaptureFixture[bytes], data: Path
) -> None:
    with data.open("ab") as file:
        file.write(b"\xff" * 10)
    status, out, err = run(capfdbinary, "--bodies", str(data))
    assert (status, out) == (1, b"one\na\nb \xff\n")
    assert f"{data}: bytes 68 to 78 are damaged: invalid message size (-1)\n" in err
    assert err.endswith("read 2 messages of 1 file, 1 damaged stretch\n")


def test_a_file_of_something_else(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    path = tmp_path / "passwd"
    path.write_text("root:x:0:0:root:/root:/bin/bash\n")
    status, _, err = run(capfdbinary, str(path))
    assert status == 1
    assert "bytes 0 to 32 are damaged: holds no message of nsqpy's or the original's (" in err


def test_a_directory_is_searched(capfdbinary: pytest.CaptureFixture[bytes], data: Path) -> None:
    (data.parent / "below").mkdir()
    (data.parent / "below" / "u.diskqueue.000000.dat.bad").write_bytes(record(3, b"three"))
    (data.parent / "t.diskqueue.meta.dat").write_bytes(b"1\n0,0\n0,0\n")
    status, out, err = run(capfdbinary, "--bodies", str(data.parent))
    assert (status, out) == (0, b"three\none\na\nb \xff\n")
    assert err == "nsqpy salvage: read 3 messages of 2 files\n"


def test_what_cannot_be_read_does_not_end_the_run(
    capfdbinary: pytest.CaptureFixture[bytes], data: Path
) -> None:
    status, out, err = run(capfdbinary, "--bodies", "/nowhere/x.segment", str(data))
    assert (status, out) == (1, b"one\na\nb \xff\n")
    assert "/nowhere/x.segment: No such file or directory" in err


def test_what_holds_no_messages_is_passed_over(
    capfdbinary: pytest.CaptureFixture[bytes], data: Path
) -> None:
    meta = data.with_name("t.diskqueue.meta.dat")
    status, _, err = run(capfdbinary, str(meta), str(data))
    assert status == 0
    assert f"{meta} holds no messages" in err


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        ((), 2, "give at least one file or directory"),
        (("x", "--json"), 2, "flags come before the paths: --json"),
        (("--json", "--bodies", "x"), 2, "exclude each other"),
        (("--republish=127.0.0.1:1", "x"), 2, "--republish and --topic go together"),
        (("--topic=t", "x"), 2, "--republish and --topic go together"),
        (("--republish=127.0.0.1:1", "--topic=$", "x"), 1, "is not a valid topic name"),
        (("--jsno", "x"), 2, "jsno"),
    ],
)
def test_command_lines_that_are_refused(
    capfdbinary: pytest.CaptureFixture[bytes],
    arguments: tuple[str, ...],
    status: int,
    reason: str,
) -> None:
    found, out, err = run(capfdbinary, *arguments)
    assert (found, out) == (status, b"")
    assert reason in err


def test_help(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    status, out, _ = run(capfdbinary, "--help")
    assert status == 0
    assert b"usage: nsqpy salvage [--flag=value ...] [PATH ...]" in out
