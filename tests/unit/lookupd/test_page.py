"""``docs/nsqlookupd.md`` says what the code does."""

import re
from pathlib import Path

from nsqpy.options import markdown_table
from nsqpy.protocol.lookup import ALLOWED_STATES, State
from nsqpy_lookupd.config import NSQLOOKUPD
from tests.unit.test_docs import section, tables

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "nsqlookupd.md").read_text()


def test_the_table_of_flags() -> None:
    assert markdown_table(NSQLOOKUPD.all_options) in PAGE


def test_the_table_of_commands() -> None:
    commands, errors = tables(section(PAGE, "## The protocol, V1"))
    told = {
        row[0].strip("`").split()[0]: {
            state for state, cell in zip(State, row[1:3], strict=True) if cell == "yes"
        }
        for row in commands
    }
    only = {verb: {state} for verb, state in ALLOWED_STATES.items()}
    assert told == {"PING": set(State), **only}
    source = (ROOT / "nsqpy" / "protocol" / "lookup.py").read_text()
    used = {f"`E_{name}`" for name in re.findall(r"ErrorCode\.(\w+)", source)}
    assert {row[0] for row in errors} == used


def test_every_http_path_is_named() -> None:
    source = (ROOT / "nsqpy_lookupd" / "http_api.py").read_text()
    routes = set(re.findall(r'^ +"(/[^"]+)": \{"(\w+)"', source, re.MULTILINE))
    (rows,) = tables(section(PAGE, "## HTTP"))
    assert routes
    assert {(row[1].strip("`"), row[0]) for row in rows} == routes
