"""Which program runs: by subcommand, and by the name the script was called with."""

import sys
from collections.abc import Sequence
from types import ModuleType

import pytest

from nsqpy.cli import main


@pytest.fixture(autouse=True)
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Programs that only note how they were called."""
    calls: list[tuple[object, ...]] = []

    def stand_in(name: str) -> ModuleType:
        def run(*arguments: object) -> int:
            calls.append((name, *arguments))
            return 7

        module = ModuleType(name)
        module.__dict__["main"] = run
        return module

    for name in ("nsqpy.daemon.app", "nsqpy.tools.pub", "nsqpy.tools.tail"):
        monkeypatch.setitem(sys.modules, name, stand_in(name))
    return calls


@pytest.mark.parametrize(
    ("argv", "call"),
    [
        (["nsqpy", "nsqd", "-h"], ("nsqpy.daemon.app", ["-h"], "nsqpy nsqd")),
        (["/usr/bin/nsqd", "-h"], ("nsqpy.daemon.app", ["-h"], "nsqd")),
        (["x/nsq_tail", "-n=1"], ("nsqpy.tools.tail", ["-n=1"], "nsq_tail")),
        (["nsqpy", "tail"], ("nsqpy.tools.tail", [], "nsqpy tail")),
        (["nsqpy", "pub", "nsqd"], ("nsqpy.tools.pub", ["nsqd"], "nsqpy pub")),
        (["x/__main__.py", "nsqd"], ("nsqpy.daemon.app", [], "nsqpy nsqd")),
    ],
)
def test_choice(
    ran: list[tuple[object, ...]], argv: Sequence[str], call: tuple[object, ...]
) -> None:
    assert main(argv) == 7
    assert ran == [call]


@pytest.mark.parametrize(
    ("argv", "status", "out", "err"),
    [
        (["nsqpy", "--help"], 0, "nsqpy: a persistent message queue", ""),
        (["nsqpy", "--version"], 0, "nsqpy 0", ""),
        (["nsqpy"], 2, "", "nsqpy: a persistent message queue"),
        (["nsqpy", "tial"], 2, "", "nsqpy: unknown subcommand 'tial'; did you mean 'nsqpy tail'?"),
        (["nsqpy", "nsq_tail"], 2, "", "nsqpy: unknown subcommand 'nsq_tail'; did you mean"),
        (["nsqpy", "qqqq"], 2, "", "nsqpy: unknown subcommand 'qqqq'\nrun 'nsqpy --help' for"),
        (["nsqpy", "--qqqq"], 2, "", "nsqpy: unknown flag '--qqqq'\n"),
    ],
)
def test_what_nsqpy_itself_says(
    capsys: pytest.CaptureFixture[str], argv: Sequence[str], status: int, out: str, err: str
) -> None:
    assert main(argv) == status
    printed = capsys.readouterr()
    assert printed.out.startswith(out)
    assert printed.err.startswith(err)
    assert bool(printed.out) is bool(out)
    assert bool(printed.err) is bool(err)


def test_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(arguments: Sequence[str], program: str) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(vars(sys.modules["nsqpy.tools.tail"]), "main", interrupted)
    assert main(["nsqpy", "tail"]) == 130
