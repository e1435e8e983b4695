"""``--log-format=json``: an object a line."""

import io
import json
import logging

from nsqpy import logs

log = logging.getLogger("nsqpy.test")


def test_a_line_is_an_object() -> None:
    stream = io.StringIO()
    logs.configure("info", "[nsqd] ", stream, logs.LogFormat.JSON)
    try:
        log.info('TOPIC(%s): "created"\nand more', "t")
        log.debug("not this")
        try:
            raise ValueError("why")
        except ValueError:
            log.critical("it failed", exc_info=True)
    finally:
        logs.configure("info", "")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first.pop("time")[-8:].endswith("Z")
    assert first == {
        "level": "INFO",
        "program": "nsqd",
        "logger": "nsqpy.test",
        "message": 'TOPIC(t): "created"\nand more',
    }
    assert (second["level"], second["message"]) == ("FATAL", "it failed")
    assert second["exception"].endswith("ValueError: why")


def test_text_that_is_no_unicode_is_still_a_line() -> None:
    stream = io.StringIO()
    logs.configure("info", "", stream, logs.LogFormat.JSON)
    try:
        log.info("bad %s", b"\xff".decode(errors="surrogateescape"))
    finally:
        logs.configure("info", "")
    assert json.loads(stream.getvalue())["message"] == "bad \udcff"
