"""``nsqpy export-original``: a data directory that the original takes up, from a stopped daemon."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from nsqpy.daemon.offline import GivenBack, export_original
from nsqpy.errors import NSQError
from nsqpy.options import option, parse_flags
from nsqpy.tools.wording import counted
from nsqpy.version import RELEASE

__all__ = ["main"]

_INTRO = """
{program}: write what a stopped nsqpy owes into a directory for the original nsqd

examples:
  {program} --data-path=/var/lib/nsqpy --to=/var/lib/nsq
  nsqd --data-path=/var/lib/nsq

The daemon on --data-path must be stopped; nothing there is changed. --to must be empty or new.
Every topic and channel goes along, with what is paused, and every message with its id, its time
and its attempts. The original has no delays on disk: a deferred message becomes an ordinary one.
Status 0: all of it is there. 1: something is damaged or failed; stderr says what.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    data_path: str = option("", required=True, metavar="DIR", help="data of the stopped daemon")
    to: str = option("", required=True, metavar="DIR", help="directory to write, empty or new")
    max_bytes_per_file: int = option(
        100 * 1024 * 1024, minimum=1, metavar="BYTES", help="bytes before a new file is begun"
    )


def main(arguments: Sequence[str], program: str) -> int:
    options = parse_flags(_Options, arguments, program, intro=_INTRO, version=f"nsqpy {RELEASE}")
    messages = deferred = damaged = 0
    try:
        for given in export_original(options.data_path, options.to, options.max_bytes_per_file):
            _tell(given)
            messages += given.messages
            deferred += given.deferred
            damaged += len(given.damaged)
    except NSQError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 1
    if deferred:
        what = counted(deferred, "deferred message")
        sys.stderr.write(f"{program}: {what} written as due at once\n")
    sys.stdout.write(f"{counted(messages, 'message')} written to {options.to}\n")
    return 1 if damaged else 0


def _tell(given: GivenBack) -> None:
    name = given.topic if given.channel is None else f"{given.topic}:{given.channel}"
    sys.stdout.write(f"{name}: {counted(given.messages, 'message')}\n")
    for damage in given.damaged:
        sys.stderr.write(
            f"{damage.path}: bytes {damage.offset} to {damage.stop} are damaged and left out: "
            f"{damage.reason}\n"
        )
