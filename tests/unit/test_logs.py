"""The log line of the reference, and a stderr that goes away."""

import io
import logging
import re
from collections.abc import Iterator

import pytest

from nsqpy import logs


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("nsqpy").setLevel(logging.NOTSET)


logger = logging.getLogger("nsqpy.daemon.something")


def test_line_format() -> None:
    stream = io.StringIO()
    logs.configure("debug", "[nsqd] ", stream)
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
        logger.log(level, "TOPIC(%s): created", "a")
    lines = stream.getvalue().splitlines()
    moment = r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6}"
    for line, printed in zip(lines, ["DEBUG", "INFO", "WARNING", "ERROR", "FATAL"], strict=True):
        assert re.fullmatch(rf"\[nsqd\] {moment} {printed}: TOPIC\(a\): created", line)


def test_the_level_can_change_while_running() -> None:
    stream = io.StringIO()
    logs.configure("fatal", "", stream)
    logger.error("no")
    logs.set_level("warn")
    logger.warning("yes")
    logger.info("no")
    assert re.fullmatch(r"\S+ \S+ WARNING: yes\n", stream.getvalue())


def test_libraries_speak_from_warn_upward() -> None:
    stream = io.StringIO()
    logs.configure("debug", "", stream)
    logging.getLogger("somebody").info("no")
    logging.getLogger("somebody").warning("yes")
    assert stream.getvalue().endswith("WARNING: yes\n")
    assert stream.getvalue().count("\n") == 1


def test_configuring_again_replaces() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.configure("info", "", first)
    logs.configure("info", "", second)
    logger.info("x")
    assert first.getvalue() == ""
    assert second.getvalue().count("x") == 1


class BrokenPipe(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_stream_that_is_gone_is_borne_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (BrokenPipe(), closed):
        logs.configure("info", "", stream)
        logger.info("x")
    assert capsys.readouterr().err == ""


def test_a_wrong_log_call_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's own would raise
    logs.configure("info", "", io.StringIO())
    logger.info("%d", "x")
    assert "Logging error" in capsys.readouterr().err


def test_levels() -> None:
    assert [logs.level_number(logs.parse_level(name.upper())) for name in logs.LEVELS] == [
        1, 2, 3, 4, 5
    ]  # fmt: skip
    for wrong in ("warning", "", "critical", '"info"', " info"):
        with pytest.raises(ValueError, match="must be one of debug, info, warn, error, fatal"):
            logs.parse_level(wrong)
