"""Logging in the reference's line format, so that what reads nsqd's log reads this one.

``[nsqd] 2026/11/21 05:40:40.156818 INFO: TCP: listening on 127.0.0.1:4150``: prefix, local
time, level, text. Source: internal/lg. ``--log-format=json`` says the same as one object a
line, for what collects logs.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import TextIO

__all__ = ["LEVELS", "LogFormat", "configure", "level_number", "parse_level", "set_level"]

# As users write them, from the most talkative; nsqd numbers them from 1.
LEVELS = ("debug", "info", "warn", "error", "fatal")

_LOGGING_LEVELS = dict(
    zip(
        LEVELS,
        (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL),
        strict=True,
    )
)
_PRINTED = {logging.CRITICAL: "FATAL"}
_PACKAGES = ("nsqpy", "nsqpy_lookupd")


class LogFormat(StrEnum):
    """How a log line is written."""

    TEXT = "text"
    JSON = "json"


def parse_level(raw: str) -> str:
    """The level in lower case.

    Raises:
        ValueError: none of ``LEVELS``. ``warning`` is none either, as in nsqd.
    """
    level = raw.lower()
    if level not in LEVELS:
        raise ValueError(f"must be one of {', '.join(LEVELS)}")
    return level


def level_number(level: str) -> int:
    """1 (debug) to 5 (fatal), as ``/config/log_level`` shows it."""
    return LEVELS.index(level) + 1


class _Formatter(logging.Formatter):
    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def formatMessage(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).astimezone()
        level = _PRINTED.get(record.levelno, record.levelname)
        return f"{self._prefix}{moment:%Y/%m/%d %H:%M:%S.%f} {level}: {record.message}"


class _JSONFormatter(logging.Formatter):
    """``time`` is RFC 3339 in UTC; ``exception`` is a traceback, where there is one."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._program = prefix.strip("[] ")

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z",
            "level": _PRINTED.get(record.levelno, record.levelname),
            "program": self._program,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, separators=(",", ":"))


class _Handler(logging.StreamHandler[TextIO]):
    """Whoever read stderr may go away; the daemon must not go with them.

    The reference dies on a closed stderr pipe. Here the line is lost, in silence: telling of
    it needs the very stream that is gone. A mistake in a log call is still reported.
    """

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        closed = isinstance(error, ValueError) and self.stream.closed
        if not (closed or isinstance(error, OSError)):
            super().handleError(record)


def configure(
    level: str,
    prefix: str,
    stream: TextIO | None = None,
    log_format: LogFormat = LogFormat.TEXT,
) -> None:
    """Send every log line to ``stream`` (stderr); replaces an earlier call's."""
    handler = _Handler(sys.stderr if stream is None else stream)
    is_json = log_format is LogFormat.JSON
    handler.setFormatter(_JSONFormatter(prefix) if is_json else _Formatter(prefix))
    root = logging.getLogger()
    for earlier in [known for known in root.handlers if isinstance(known, _Handler)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    set_level(level)


def set_level(level: str) -> None:
    """Change what is logged, at once. The libraries we stand on speak from ``warn`` upward."""
    number = _LOGGING_LEVELS[level]
    for package in _PACKAGES:
        logging.getLogger(package).setLevel(number)
    logging.getLogger().setLevel(max(number, logging.WARNING))
