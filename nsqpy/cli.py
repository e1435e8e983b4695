"""The console script: chooses the program by subcommand, or by the name it was called with.

A symlink named ``nsqd`` or ``nsq_tail`` to ``nsqpy`` is that program of the original, with its
flags: scripts and the official clients' test suites start it so.
"""

import difflib
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from nsqpy.version import NSQ_VERSION, RELEASE

__all__ = ["PROGRAMS", "Program", "main"]


@dataclass(frozen=True, slots=True)
class Program:
    """One subcommand: its name and its original's, where it lives, what it does.

    ``module.main(arguments, shown_as)`` runs it, and calls it ``shown_as`` in help and hints.
    The module is loaded only when its program is chosen.
    """

    name: str
    original: str
    module: str
    summary: str

    def run(self, arguments: Sequence[str], shown_as: str) -> int:
        status = importlib.import_module(self.module).main(arguments, shown_as)
        assert isinstance(status, int)
        return status


PROGRAMS = (
    Program("nsqd", "nsqd", "nsqpy.daemon.app", "the queue daemon: TCP 4150, HTTP 4151"),
    Program(
        "nsqlookupd",
        "nsqlookupd",
        "nsqpy_lookupd.app",
        "the directory of daemons: TCP 4160, HTTP 4161",
    ),
    Program("up", "", "nsqpy.tools.up", "both of these in one process, to try things out"),
    Program("pub", "", "nsqpy.tools.pub", "publish messages from the command line or stdin"),
    Program("tail", "nsq_tail", "nsqpy.tools.tail", "print the messages of topics as they come"),
    Program("token", "", "nsqpy.tools.token", "make a token that lets somebody in"),
    Program("drain", "", "nsqpy.tools.drain", "write what waits in a channel to files, with Spark"),
    Program("salvage", "", "nsqpy.tools.salvage", "print or republish what a damaged file holds"),
    Program(
        "export-original",
        "",
        "nsqpy.tools.export_original",
        "write a data directory for the original to take back",
    ),
)

_VERSION = f"nsqpy {RELEASE} (behaves as NSQ {NSQ_VERSION})"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program that ``argv`` (all of it, the name first) asks for; its exit status.

    0 for help and a normal end, 1 for a wrong value or a fatal error, 2 for a command line
    that cannot be understood.
    """
    called_as, *arguments = sys.argv if argv is None else argv
    own_name = PurePath(called_as).name
    try:
        for program in PROGRAMS:
            if program.original and own_name == program.original:
                return program.run(arguments, own_name)
        return _subcommand(arguments)
    except KeyboardInterrupt:
        return 130


def _subcommand(arguments: Sequence[str]) -> int:
    if not arguments:
        sys.stderr.write(_overview())
        return 2
    name, *rest = arguments
    if name in ("-h", "-help", "--help", "help"):
        sys.stdout.write(_overview())
        return 0
    if name in ("-version", "--version", "version"):
        sys.stdout.write(f"{_VERSION}\n")
        return 0
    for program in PROGRAMS:
        if program.name == name:
            return program.run(rest, f"nsqpy {name}")
    sys.stderr.write(f"nsqpy: {_unknown(name)}\nrun 'nsqpy --help' for the subcommands\n")
    return 2


def _unknown(name: str) -> str:
    what = "flag" if name.startswith("-") else "subcommand"
    names = {program.name: program.name for program in PROGRAMS}
    names |= {program.original: program.name for program in PROGRAMS if program.original}
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean 'nsqpy {names[close[0]]}'?" if close else ""
    return f"unknown {what} '{name}'{hint}"


def _overview() -> str:
    rows = "".join(f"  {program.name:<16} {program.summary}\n" for program in PROGRAMS)
    return f"""\
nsqpy: a persistent message queue that speaks the NSQ protocol

usage: nsqpy <subcommand> [--flag=value ...]

subcommands:
{rows}
examples:
  nsqpy up
  nsqpy nsqd --data-path=/var/lib/nsqpy
  echo hello | nsqpy pub --topic=greetings --nsqd-tcp-address=127.0.0.1:4150
  nsqpy tail --topic=greetings --nsqd-tcp-address=127.0.0.1:4150

'nsqpy <subcommand> --help' tells its flags; 'nsqpy --version' the version.
"""
