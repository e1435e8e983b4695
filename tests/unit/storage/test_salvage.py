"""One file, whatever happened to it: each intact record comes out, each damaged stretch is told."""

from random import Random

import pytest

from nsqpy.clock import SECOND
from nsqpy.message import encode_batch
from nsqpy.storage.block import BLOCK_HEADER_BYTES
from nsqpy.storage.diskqueue import DiskQueue
from nsqpy.storage.salvage import Found, holds_messages, salvage
from nsqpy.storage.segment import SEGMENT_HEADER_BYTES, BadStretch
from tests.unit.fakes import FakeFiles, FakeListener, bodies_of, message_id
from tests.unit.storage.original_files import record

SEGMENT = "q/00000000000000000001.segment"
BLOCKS = [[b"one", b"two"], [b"three"], [b"four", b"five", b"six"]]


@pytest.fixture
def files() -> FakeFiles:
    """A segment of three blocks; records 2, 4 and 5 are acknowledged."""
    files = FakeFiles()
    queue = open_log(files)
    number = 1
    for bodies in BLOCKS:
        ids = b"".join(message_id(number + index) for index in range(len(bodies)))
        queue.append([encode_batch(bodies, ids, 1_700_000_000 * SECOND)], held=False)
        number += len(bodies)
    queue.acknowledge(2, 1)
    queue.acknowledge(4, 2)
    queue.flush()
    queue.close()
    return files


def open_log(files: FakeFiles) -> DiskQueue:
    queue = DiskQueue(
        files,
        "q",
        name="q",
        segment_max_bytes=1 << 20,
        sync_every=1000,
        listener=FakeListener(),
    )
    queue.open()
    return queue


def read(
    files: FakeFiles, path: str = SEGMENT, *, unacknowledged: bool = False, unverified: bool = False
) -> tuple[list[bytes], list[BadStretch]]:
    bodies: list[bytes] = []
    bad = []
    content = bytes(files.content(path))
    items = salvage(
        files,
        path,
        body_max_bytes=1000,
        unacknowledged=unacknowledged,
        unverified=unverified,
    )
    for item in items:
        if isinstance(item, BadStretch):
            bad.append(item)
            continue
        found = bodies_of(item.batch)
        for body, offset in zip(found, item.offsets, strict=True):
            assert content[offset:].partition(body)[0][-16:].isalnum(), "an offset is a record's"
        bodies += found
    assert not files.open_files
    assert files.content(path) == content
    return bodies, bad


def block_at(files: FakeFiles, index: int) -> int:
    content = files.content(SEGMENT)
    at = -1
    for _ in range(index + 1):
        at = content.index(b"NQB1", at + 1)
    return at


def test_a_sound_segment(files: FakeFiles) -> None:
    assert read(files) == ([b"one", b"two", b"three", b"four", b"five", b"six"], [])


def test_what_the_journal_does_not_acknowledge(files: FakeFiles) -> None:
    assert read(files, unacknowledged=True) == ([b"one", b"three", b"six"], [])


def test_without_a_journal_nothing_is_acknowledged(files: FakeFiles) -> None:
    files.remove(SEGMENT.replace(".segment", ".journal"))
    assert len(read(files, unacknowledged=True)[0]) == 6


@pytest.mark.parametrize("where", [0, 20, BLOCK_HEADER_BYTES + 36])
def test_a_damaged_block_costs_itself(files: FakeFiles, where: int) -> None:
    start, stop = block_at(files, 0), block_at(files, 1)
    files.content(SEGMENT)[start + where] ^= 0x10
    bodies, (bad,) = read(files)
    assert bodies == [b"three", b"four", b"five", b"six"]
    assert (bad.offset, bad.stop) == (start, stop)


def test_messages_of_a_damaged_block_on_request(files: FakeFiles) -> None:
    files.content(SEGMENT)[block_at(files, 2) + BLOCK_HEADER_BYTES + 4] ^= 0x10  # type of "four"
    bodies, bad = read(files, unverified=True)
    assert bodies == [b"one", b"two", b"three", b"five", b"six"]
    assert len(bad) == 1


def test_only_a_checksum_verifies(files: FakeFiles) -> None:
    files.content(SEGMENT)[-1] ^= 1
    items = list(salvage(files, SEGMENT, body_max_bytes=0, unverified=True))
    assert [item.verified for item in items if isinstance(item, Found)] == [
        *(True, True, False, False, False)
    ]


def test_what_the_daemon_set_aside_is_read_by_itself(files: FakeFiles) -> None:
    content = files.content(SEGMENT)
    start, stop = block_at(files, 0), block_at(files, 1)
    content[start + BLOCK_HEADER_BYTES + 34] ^= 1
    bad_path = f"{SEGMENT}.{start}.bad"
    files.put(bad_path, bytes(content[start:stop]))
    assert read(files, bad_path)[0] == []
    assert read(files, bad_path, unverified=True)[0] == [b"nne", b"two"]


@pytest.mark.parametrize("cut", [1, 60])
def test_a_torn_end(files: FakeFiles, cut: int) -> None:
    del files.content(SEGMENT)[-cut:]
    bodies, (bad,) = read(files)
    assert bodies == [b"one", b"two", b"three"]
    assert bad.reason == "block is cut off"


def test_a_damaged_segment_header_costs_no_message(files: FakeFiles) -> None:
    files.content(SEGMENT)[0] ^= 1
    bodies, bad = read(files, unacknowledged=True)
    assert bodies == [b"one", b"three", b"six"]
    assert bad == [BadStretch(0, SEGMENT_HEADER_BYTES, "no segment starts here")]


def test_a_segment_is_known_by_its_bytes_too(files: FakeFiles) -> None:
    files.put("elsewhere/copy", bytes(files.content(SEGMENT)))
    assert len(read(files, "elsewhere/copy")[0]) == 6
    files.put("elsewhere/blocks", bytes(files.content(SEGMENT)[SEGMENT_HEADER_BYTES:]))
    assert len(read(files, "elsewhere/blocks")[0]) == 6


def test_blocks_of_a_write_that_failed_do_not_count(files: FakeFiles) -> None:
    content = files.content(SEGMENT)
    content.extend(content[block_at(files, 1) : block_at(files, 2)])
    bodies, (bad,) = read(files)
    assert len(bodies) == 6
    assert bad.reason == "record 3 is left over from a write that failed"


def test_an_empty_file() -> None:
    files = FakeFiles()
    files.put(SEGMENT, b"")
    assert read(files) == ([], [])


def test_a_file_of_the_original() -> None:
    files = FakeFiles()
    path = "d/t.diskqueue.000000.dat.bad"
    files.put(path, record(1, b"a") + b"\x7f\0\0\0damage" + record(2, b"b"))
    bodies, (bad,) = read(files, path)
    assert bodies == [b"a", b"b"]
    assert bad.reason == "invalid message size (2130706432)"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("00000000000000000001.segment", True),
        ("00000000000000000001.segment.5120.bad", True),
        ("00000000000000000001.journal", False),
        ("t.diskqueue.000001.dat", True),
        ("t:c.diskqueue.000001.dat.bad", True),
        ("t.diskqueue.meta.dat", False),
        ("nsqd.dat", False),
    ],
)
def test_names_of_what_holds_messages(name: str, expected: bool) -> None:
    assert holds_messages(name) is expected


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_damaged_only_messages_come_out(files: FakeFiles, seed: int) -> None:
    random = Random(seed)
    content = files.content(SEGMENT)
    for _ in range(random.randrange(1, 6)):
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    del content[random.randrange(len(content) // 2, len(content)) :]
    known = {body for block in BLOCKS for body in block}
    items = list(salvage(files, SEGMENT, body_max_bytes=0))
    found = [body for item in items if isinstance(item, Found) for body in bodies_of(item.batch)]
    assert set(found) <= known
    assert len(set(found)) == len(found)
    assert any(isinstance(item, BadStretch) for item in items)
