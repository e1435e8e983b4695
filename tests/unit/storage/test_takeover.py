"""A data directory of the original becomes ours: once, whole, and whenever it is interrupted."""

import json
import logging
from contextlib import suppress

import pytest

from nsqpy.core.layout import Layout
from nsqpy.errors import StorageError
from nsqpy.storage.diskqueue import DiskQueue
from nsqpy.storage.takeover import GivenBack, Takeover, give_back
from tests.unit.fakes import FakeFiles, FakeListener, batch_of
from tests.unit.storage.original_files import KillableFiles, Killed, put_queue, record

METADATA = (
    b'{"topics":[{"name":"t","paused":true,"channels":[{"name":"c","paused":true}]},'
    b'{"name":"idle","paused":false,"channels":null}],"version":"1.3.0"}'
)
WALL_NS = 1_795_252_800 * 1_000_000_000  # 2026-11-21
ASIDE = "root/original-2026-11-21"
EXPECTED = {
    "queues/t.topic/queue": [(1, 1, b"read, then left"), (2, 1, b"two"), (3, 8, b"three")],
    "queues/t.topic/c.channel/queue": [(7, 1, b"seven")],
}


def original() -> KillableFiles:
    files = KillableFiles()
    files.make_directory("root")
    files.put("root/nsqd.dat", METADATA)
    skipped = record(0, b"consumed")
    put_queue(
        files,
        "root/t",
        [skipped, record(1, b"read, then left")],
        [record(2, b"two"), record(3, b"three", attempts=7)],
        read=(0, len(skipped)),
    )
    put_queue(files, "root/t:c", [record(7, b"seven")])
    files.operations = 0
    return files


def take_over(files: FakeFiles, *, max_bytes: int = 1 << 20) -> None:
    Takeover(files, "root", Layout, body_max_bytes=max_bytes, segment_max_bytes=100).run(WALL_NS)


def logs(files: FakeFiles) -> dict[str, list[tuple[int, int, bytes]]]:
    """Number in the id, attempts and body of each message, for each log that has any."""
    found = {}
    directories = {path.rpartition("/")[0] for path in files.paths(".segment")}
    for directory in sorted(directories):
        queue = DiskQueue(
            files,
            directory,
            name="",
            segment_max_bytes=100,
            sync_every=1000,
            listener=FakeListener(),
        )
        queue.open()
        messages = []
        while runs := queue.read():
            for run in runs:
                for index in range(run.start, run.stop):
                    frame = run.batch.frames(index, index + 1)
                    messages.append((int(frame[18:34], 16), frame[17], frame[34:]))
        found[directory.removeprefix("root/")] = messages
        queue.close()
    return found


def test_every_message_and_the_metadata_come_along(caplog: pytest.LogCaptureFixture) -> None:
    files = original()
    before = {path: bytes(files.content(path)) for path in files.paths()}
    with caplog.at_level(logging.INFO):
        take_over(files)
    assert logs(files) == EXPECTED
    assert files.content("root/nsqd.dat") == METADATA
    for path, content in before.items():
        assert files.content(path.replace("root", ASIDE)) == content
    assert not [path for path in files.paths() if path.startswith("root/t")]
    assert not files.paths("takeover.json")
    assert not files.open_files
    assert "TOPIC(t): took over 3 messages from 2 files" in caplog.text
    assert "TOPIC(t) CHANNEL(c): took over 1 messages from 1 files" in caplog.text


def test_the_second_start_has_nothing_to_do() -> None:
    files = original()
    take_over(files)
    after = {path: bytes(files.content(path)) for path in files.paths()}
    take_over(files)
    assert {path: bytes(files.content(path)) for path in files.paths()} == after


def test_a_kill_at_any_moment_loses_and_doubles_nothing() -> None:
    whole = original()
    take_over(whole)
    assert whole.operations > 30
    for moment in range(whole.operations):
        files = original()
        files.kill_at = moment
        with pytest.raises(Killed):
            take_over(files)
        # Killed again as it mends, then left in peace.
        again = files.restarted()
        again.kill_at = moment // 2
        with suppress(Killed):
            take_over(again)
        last = again.restarted()
        take_over(last)
        assert logs(last) == EXPECTED, moment
        assert last.content("root/nsqd.dat") == METADATA
        assert last.content(f"{ASIDE}/nsqd.dat") == METADATA
        assert len([path for path in last.paths() if path.startswith(ASIDE)]) == 6, moment
        assert not last.list_directory("root/queues.import")


def test_what_is_imported_survives_a_power_cut() -> None:
    files = original()
    take_over(files)
    survivors = files.after_power_loss()
    assert logs(survivors) == EXPECTED


@pytest.mark.parametrize("operation", ["write", "sync", "open", "make_directory", "rename"])
def test_a_disk_that_refuses_leaves_the_original_as_it_was(operation: str) -> None:
    files = original()
    before = {path: bytes(files.content(path)) for path in files.paths()}
    files.fail(operation, path="queues.import", times=-1)
    with pytest.raises(StorageError):
        take_over(files)
    files.heal()
    if operation != "rename":  # the copy is taken away, since it may be what fills the disk
        assert {path: bytes(files.content(path)) for path in files.paths()} == before
    take_over(files)
    assert logs(files) == EXPECTED


def test_messages_of_both_are_not_mixed() -> None:
    files = original()
    queue = DiskQueue(
        files,
        "root/queues/x.topic/queue",
        name="",
        segment_max_bytes=100,
        sync_every=1,
        listener=FakeListener(),
    )
    queue.open()
    queue.append([batch_of(b"ours")], held=False)
    queue.close()
    before = files.paths()
    with pytest.raises(
        StorageError, match=r"holds queues/ with messages of nsqpy and also 5 files"
    ):
        take_over(files)
    assert files.paths() == before


def test_queues_without_messages_make_room() -> None:
    files = original()
    files.make_directory("root/queues/t.topic/c.channel/queue")
    take_over(files)
    assert logs(files) == EXPECTED


def test_damage_costs_the_rest_of_its_file_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    files = original()
    at = len(record(0, b"consumed"))
    files.content("root/t.diskqueue.000000.dat")[at] = 0x7F
    take_over(files)
    assert logs(files)["queues/t.topic/queue"] == EXPECTED["queues/t.topic/queue"][1:]
    assert f"t.diskqueue.000000.dat at byte {at}: invalid message size" in caplog.text
    assert f"{ASIDE}/t.diskqueue.000000.dat" in files.paths()


def test_what_is_larger_than_a_message_may_be_is_damage() -> None:
    files = original()
    take_over(files, max_bytes=4)
    assert logs(files) == {"queues/t.topic/queue": [(2, 1, b"two")]}


@pytest.mark.parametrize("meta", [None, b"garbage", b"1\n9,0\n1,1\n"])
def test_without_positions_everything_is_taken(
    meta: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    files = original()
    if meta is None:
        files.remove("root/t.diskqueue.meta.dat")
    else:
        files.put("root/t.diskqueue.meta.dat", meta)
    take_over(files)
    messages = logs(files)["queues/t.topic/queue"]
    assert messages == [(0, 1, b"consumed"), *EXPECTED["queues/t.topic/queue"]]
    assert "taking everything" in caplog.text


def test_what_was_written_after_the_last_save_of_the_positions_is_taken() -> None:
    files = original()
    files.content("root/t:c.diskqueue.000000.dat").extend(record(8, b"eight"))
    files.put("root/t:c.diskqueue.000001.dat", record(9, b"nine"))
    take_over(files)
    assert [body for *_, body in logs(files)["queues/t.topic/c.channel/queue"]] == [
        *(b"seven", b"eight", b"nine")
    ]


def test_names_from_windows_ephemeral_leftovers_and_what_is_no_name() -> None:
    files = original()
    put_queue(files, "root/t;w", [record(1, b"w")])
    put_queue(files, "root/t:e#ephemeral", [record(1, b"e")])
    put_queue(files, "root/t:c:d", [record(1, b"e")])
    files.put("root/t.diskqueue.000009.dat.bad", b"kept")
    take_over(files)
    assert logs(files) == EXPECTED | {"queues/t.topic/w.channel/queue": [(1, 1, b"w")]}
    left = [path for path in files.paths() if path.count("/") == 1]
    assert left == ["root/nsqd.dat", "root/t.diskqueue.000009.dat.bad"]


def test_nothing_of_the_original_is_nothing_to_do() -> None:
    files = KillableFiles()
    files.make_directory("root")
    files.put("root/nsqd.dat", METADATA)
    files.put("root/queues.import/queues/t.topic/queue/1.segment", b"an import given up")
    take_over(files)
    assert files.paths() == ["root/nsqd.dat"]


def test_a_name_that_is_taken_gets_a_number() -> None:
    files = original()
    files.put(f"{ASIDE}/nsqd.dat", b"earlier")
    take_over(files)
    assert files.content(f"{ASIDE}/nsqd.dat") == b"earlier"
    assert f"{ASIDE}-2/nsqd.dat" in files.paths()


def test_a_note_that_cannot_be_read_stops_the_start() -> None:
    files = original()
    files.put("root/queues/takeover.json", b"{}")
    with pytest.raises(StorageError, match=r"takeover\.json: cannot be read"):
        take_over(files)


def test_without_metadata_the_original_gets_an_empty_one() -> None:
    files = original()
    files.remove("root/nsqd.dat")
    take_over(files)
    assert logs(files) == EXPECTED
    assert json.loads(files.content("root/nsqd.dat"))["topics"] is None


# --- the way back ---


def exported(files: FakeFiles) -> list[GivenBack]:
    files.make_directory("out")
    return list(give_back(files, "root", Layout("root"), "out", 100))


def test_there_and_back_again() -> None:
    files = original()
    expected = original()
    take_over(files)
    before = {path: bytes(files.content(path)) for path in files.paths()}
    given = exported(files)
    assert [(one.topic, one.channel, one.messages) for one in given] == [
        *(("t", None, 3), ("t", "c", 1))
    ]
    for path, content in before.items():
        assert files.content(path) == content, "the source is only read"
    again = KillableFiles()
    for path in files.paths():
        if path.startswith("out/"):
            again.put(path.replace("out/", "root/"), bytes(files.content(path)))
    assert json.loads(again.content("root/nsqd.dat"))["topics"] == [
        {"name": "t", "paused": True, "channels": [{"name": "c", "paused": True}]},
        {"name": "idle", "paused": False, "channels": []},
    ]
    channel = "root/t:c.diskqueue.000000.dat"
    assert again.content(channel) == expected.content(channel)
    take_over(again)
    assert logs(again) == EXPECTED


def test_what_is_acknowledged_stays_behind_and_what_is_deferred_comes_along() -> None:
    files = KillableFiles()
    for directory, deliver_at_ns in (("queue", 0), ("deferred", 5)):
        queue = DiskQueue(
            files,
            f"root/queues/t.topic/c.channel/{directory}",
            name="",
            segment_max_bytes=1000,
            sync_every=1,
            listener=FakeListener(),
        )
        queue.open()
        bodies = [f"{directory} {number}".encode() for number in (1, 2, 3)]
        queue.append([batch_of(*bodies, deliver_at_ns=deliver_at_ns)], held=False)
        queue.acknowledge(2, 1)
        queue.flush()
        queue.close()
    _, channel = exported(files)
    assert (channel.messages, channel.deferred, channel.damaged) == (4, 2, [])
    content = b"".join(files.content(path) for path in files.paths(".dat"))
    assert content.count(b"queue 1") == content.count(b"deferred 3") == 1
    assert b"queue 2" not in content
    assert json.loads(files.content("out/nsqd.dat"))["topics"] == [
        {"name": "t", "paused": False, "channels": [{"name": "c", "paused": False}]}
    ]


def test_damage_is_left_out_and_told() -> None:
    files = original()
    take_over(files)
    path = "root/queues/t.topic/c.channel/queue/00000000000000000001.segment"
    files.content(path)[-1] ^= 1
    _, channel = exported(files)
    assert channel.messages == 0
    ((bad_path, offset, _, reason),) = channel.damaged
    assert (bad_path, offset, reason) == (path, 16, "checksum of the block does not match")


def test_metadata_that_is_no_metadata_is_not_given_back() -> None:
    files = original()
    take_over(files)
    files.put("root/nsqd.dat", b"{")
    with pytest.raises(StorageError, match="failed to parse"):
        exported(files)
