"""The pages in ``docs/`` say what the code does: links, tables and layouts are held against it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import pytest

from nsqpy.clock import SECOND
from nsqpy.errors import ErrorCode
from nsqpy.message import FRAME_HEADER_BYTES, encode_batch
from nsqpy.options import options_of
from nsqpy.protocol.commands import ALLOWED_STATES, State
from nsqpy.protocol.identify import Features, Limits, negotiate, parse_identify
from nsqpy.storage.block import BLOCK_HEADER_BYTES
from nsqpy.storage.diskqueue import DiskQueue
from nsqpy.storage.files import OSFiles
from nsqpy.storage.segment import SEGMENT_HEADER_BYTES
from nsqpy_lookupd.config import LookupdConfig
from tests.unit.fakes import FakeListener

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()
STORAGE = (ROOT / "docs" / "storage.md").read_text()


def section(page: str, heading: str) -> str:
    """What stands under a heading, up to the next one of the same rank or a higher one."""
    rank = len(heading) - len(heading.lstrip("#"))
    found = re.search(
        rf"^{re.escape(heading)}$\n(.*?)(?=^#{{1,{rank}}} |\Z)", page, re.MULTILINE | re.DOTALL
    )
    assert found is not None, heading
    return found[1]


def tables(text: str) -> list[list[list[str]]]:
    """The cells of each table's rows, without its head."""
    blocks = re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE)
    return [
        [[cell.strip() for cell in row.strip("|").split("|")] for row in block.splitlines()[2:]]
        for block in blocks
    ]


def quoted(text: str) -> set[str]:
    """Everything between backticks."""
    return set(re.findall(r"`([^`\n]+)`", text))


# --- what a page points to ---


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@EACH_PAGE
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in headings(target), link


@EACH_PAGE
def test_every_file_named_exists(page: Path) -> None:
    for name in quoted(page.read_text()):
        if re.fullmatch(r"(?:nsqpy|docs|tests|deploy|examples)/[\w/.]+", name):
            assert (ROOT / name).exists(), name


@EACH_PAGE
def test_every_make_target_named_exists(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    text = page.read_text()
    for target in re.findall(r"(?:`|^)make ([a-z0-9]+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@EACH_PAGE
def test_every_flag_named_is_an_option(page: Path) -> None:
    known = quoted((ROOT / "docs" / "configuration.md").read_text()) | {
        "--help", "--strict", "--queue-scan-*", "--lookupd-http-address",
        "--nsqd-tcp-address",
    }  # fmt: skip
    known |= {f"--{option.flag}" for option in options_of(LookupdConfig)}
    flags = {name.partition("=")[0] for name in quoted(page.read_text()) if name.startswith("--")}
    assert flags <= known, flags - known


def test_the_readme_leads_to_every_page() -> None:
    linked = set(re.findall(r"\]\((docs/[\w.]+)\)", PAGES[0].read_text()))
    assert linked >= {page.relative_to(ROOT).as_posix() for page in PAGES[1:]}


# --- protocol.md ---


def test_the_table_of_states_is_the_codes() -> None:
    (rows,) = tables(section(PROTOCOL, "### States"))
    columns = (State.INITIAL, State.SUBSCRIBED, State.CLOSING)
    told = {
        row[0].strip("`"): frozenset(
            state for state, cell in zip(columns, row[1:], strict=True) if cell != "no"
        )
        for row in rows
    }
    anywhere = dict.fromkeys(("PUB", "MPUB", "DPUB", "NOP"), frozenset(State))
    assert told == ALLOWED_STATES | anywhere


def test_the_table_of_commands_has_each_of_them() -> None:
    commands, *_ = tables(section(PROTOCOL, "## Commands"))
    (states,) = tables(section(PROTOCOL, "### States"))
    assert {row[0].strip("`").split()[0] for row in commands} == {
        row[0].strip("`") for row in states
    }


def test_every_error_code_is_explained() -> None:
    (rows,) = tables(section(PROTOCOL, "## Errors"))
    assert {row[0].strip("`") for row in rows} == {code.value for code in ErrorCode}


def test_every_key_of_the_identify_reply_is_named() -> None:
    limits = Limits(
        max_heartbeat_interval_ns=60 * SECOND,
        min_output_buffer_timeout_ns=0,
        max_output_buffer_timeout_ns=SECOND,
        output_buffer_timeout_ns=0,
        max_output_buffer_size=65536,
        msg_timeout_ns=60 * SECOND,
        max_msg_timeout_ns=900 * SECOND,
        max_rdy_count=2500,
        max_deflate_level=6,
        topology_region="",
        topology_zone="",
        version="1.3.0",
    )
    identify = parse_identify(b'{"feature_negotiation":true}')
    _, reply = negotiate(identify, limits, Features(client_id="", hostname=""))
    assert reply is not None
    keys = set(re.findall(r'"(\w+)":', reply.decode()))
    assert keys <= quoted(section(PROTOCOL, "## IDENTIFY"))


def test_every_http_path_is_named() -> None:
    daemon = ROOT / "nsqpy" / "daemon"
    source = (daemon / "http_api.py").read_text() + (daemon / "lease_api.py").read_text()
    paths = set(re.findall(r'^ +"(/[^"]+)": ', source, re.MULTILINE))
    (rows,) = tables(section(PROTOCOL, "## HTTP"))
    told = {row[1].strip("`") for row in rows}
    assert paths
    assert paths == {path for path in told if not path.startswith("/debug/")}


# --- storage.md ---


class Field(NamedTuple):
    """One row of a layout's table."""

    name: str
    start: int
    stop: int
    meaning: str

    def number(self, data: bytes, at: int = 0) -> int:
        signed = self.meaning.startswith("signed")
        return int.from_bytes(data[at + self.start : at + self.stop], "big", signed=signed)


def layouts(heading: str) -> Iterator[dict[str, Field]]:
    """The layouts under a heading; each begins at 0 and has no gaps."""
    for rows in tables(section(STORAGE, heading)):
        fields: dict[str, Field] = {}
        end = 0
        for offset, size, name, meaning in rows:
            assert int(offset) == end, name
            end += int(size)
            fields[name.strip("`")] = Field(name.strip("`"), int(offset), end, meaning)
        yield fields


def size_of(layout: dict[str, Field]) -> int:
    return max(field.stop for field in layout.values())


@pytest.fixture
def log_directory(tmp_path: Path) -> Path:
    """A log of two blocks, the second deferred, of which records 1 and 3 are acknowledged."""
    queue_log = DiskQueue(
        OSFiles(),
        str(tmp_path),
        name="documented",
        segment_max_bytes=1 << 20,
        sync_every=1000,
        listener=FakeListener(),
    )
    queue_log.open()
    ids = b"%016x" * 2 % (1, 2)
    queue_log.append([encode_batch([b"one", b"two"], ids, 7)], held=False)
    queue_log.append([encode_batch([b"three", b"four"], ids, 7, deliver_at_ns=99)], held=False)
    queue_log.acknowledge(1, 1)
    queue_log.acknowledge(3, 1)
    queue_log.flush()
    queue_log.close()
    return tmp_path


def test_a_segment_reads_as_the_page_says(log_directory: Path) -> None:
    data = (log_directory / "00000000000000000001.segment").read_bytes()
    (header,) = layouts("### Segment")
    (block,) = layouts("### Block")
    assert (size_of(header), size_of(block)) == (SEGMENT_HEADER_BYTES, BLOCK_HEADER_BYTES)
    magic = header["magic"]
    assert f"`{data[magic.start : magic.stop].decode()}`" == magic.meaning
    assert header["first_number"].number(data) == 1
    at = size_of(header)
    for kind, deliver_at, first_number, bodies in (
        (1, 0, 1, [b"one", b"two"]),
        (2, 99, 3, [b"three", b"four"]),
    ):
        magic = block["magic"]
        assert f"`{data[at + magic.start : at + magic.stop].decode()}`" == magic.meaning
        told = {name: field.number(data, at) for name, field in block.items() if name != "magic"}
        frames_at = at + size_of(block)
        frames = data[frames_at : frames_at + told["length"]]
        assert told == {
            "version": 1,
            "kind": kind,
            "reserved": 0,
            "count": len(bodies),
            "length": sum(FRAME_HEADER_BYTES + len(body) for body in bodies),
            "deliver_at": deliver_at,
            "first_number": first_number,
            "crc": google_crc32c.value(frames),
            "header_crc": google_crc32c.value(data[at : at + block["header_crc"].start]),
        }
        assert frames.endswith(bodies[-1])
        at = frames_at + len(frames)
    assert at == len(data)


def test_a_journal_reads_as_the_page_says(log_directory: Path) -> None:
    data = (log_directory / "00000000000000000001.journal").read_bytes()
    group, acknowledged = layouts("### Journal")
    assert group["count"].number(data) == 2
    ranges_at = size_of(group)
    assert group["crc"].number(data) == google_crc32c.value(data[ranges_at:])
    step = size_of(acknowledged)
    assert len(data) == ranges_at + 2 * step
    told = [
        (acknowledged["offset"].number(data, at), acknowledged["length"].number(data, at))
        for at in range(ranges_at, len(data), step)
    ]
    assert told == [(0, 1), (2, 1)]


def test_the_frame_header_is_as_long_as_drawn() -> None:
    drawn = section(PROTOCOL, "## Framing")
    envelope, message = re.findall(r"^(0(?: +\d+)+)$", drawn, re.MULTILINE)
    assert int(envelope.split()[-1]) + int(message.split()[-1]) == FRAME_HEADER_BYTES
