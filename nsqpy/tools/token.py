"""``nsqpy token``: a new secret for somebody, and the line of the token file that lets it in."""

import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nsqpy.errors import LocalProtocolError
from nsqpy.options import option, parse_flags
from nsqpy.tokens import (
    TOKEN_PREFIX,
    Role,
    Token,
    TokenFileError,
    hash_token,
    make_token,
    parse_tokens,
    token_line,
)
from nsqpy.version import RELEASE

__all__ = ["main"]

_INTRO = """\
{program}: make a token for --auth-token-file

examples:
  {program} --name=billing --role=publish,consume --topic='orders.*' --file=/etc/nsqpy/tokens
  {program} --name=prometheus --role=observe --topic='>' --file=/etc/nsqpy/tokens
  {program} --name=ops --role=admin --topic='>'          (prints the line instead)

The token is printed once, alone on standard output, and stored nowhere: the file gets its hash.
A daemon that runs reads the file again on SIGHUP. In a topic pattern * is one part between dots,
and > at the end is all that follows."""

_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    name: str = option("", required=True, help="whose it is: shown in /stats and logs")
    role: tuple[str, ...] = option(
        (),
        required=True,
        split=True,
        help=f"{', '.join(Role)} (repeatable, or with commas)",
    )
    topic: tuple[str, ...] = option(
        (),
        required=True,
        split=True,
        metavar="PATTERN",
        help="topics it is good for (repeatable, or with commas)",
    )
    file: str = option("", metavar="FILE", help="token file to add the line to; made if it is new")


def main(arguments: Sequence[str], program: str) -> int:
    options = parse_flags(_Options, arguments, program, intro=_INTRO, version=f"nsqpy {RELEASE}")
    secret = TOKEN_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    try:
        digest = hash_token(secret.encode())
        token = make_token(options.name, digest, list(options.role), list(options.topic))
        if options.file:
            _add(Path(options.file), token)
        else:
            sys.stderr.write(f"line for the token file: {token_line(token)}\n")
    except (LocalProtocolError, OSError, UnicodeDecodeError) as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 1
    sys.stdout.write(f"{secret}\n")
    return 0


def _add(path: Path, token: Token) -> None:
    """Append the line, if the file is in order and stays so.

    Raises:
        LocalProtocolError, OSError, UnicodeDecodeError: nothing was written.
    """
    present = path.read_bytes().decode() if path.exists() else ""
    try:
        book = parse_tokens(present)
    except TokenFileError as error:
        raise TokenFileError(f"{path}: {error}") from error
    if token.name in book:
        reason = f"{token.name} has a token there already: remove its line, or take another name"
        raise TokenFileError(f"{path}: {reason}")
    if present and not present.endswith("\n"):
        present += "\n"
    content = f"{present}{token_line(token)}\n"
    temporary = path.with_name(f"{path.name}.new")
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as file:  # noqa: PTH123
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
