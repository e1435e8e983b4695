"""Where things are in the data directory."""

from nsqpy.core.layout import Layout
from tests.unit.fakes import FakeFiles

LAYOUT = Layout("data")


def test_every_queue_has_a_directory_of_its_own() -> None:
    assert LAYOUT.topic("t") == "data/queues/t.topic"
    assert LAYOUT.topic_log("t") == "data/queues/t.topic/queue"
    assert LAYOUT.channel("t", "c") == "data/queues/t.topic/c.channel"
    assert LAYOUT.channel_log("t", "c") == "data/queues/t.topic/c.channel/queue"
    assert LAYOUT.deferred_log("t", "c") == "data/queues/t.topic/c.channel/deferred"
    assert LAYOUT.timers("t", "c") == "data/queues/t.topic/c.channel/timers"


def test_the_logs_of_a_channel_are_in_the_order_of_what_is_due() -> None:
    files = FakeFiles()
    for name in ("4096000-4096", "4096-64", "4160-7", "x"):
        files.make_directory(f"{LAYOUT.timers('t', 'c')}/{name}")
    assert LAYOUT.channel_logs(files, "t", "c") == [
        "data/queues/t.topic/c.channel/queue",
        "data/queues/t.topic/c.channel/deferred",
        "data/queues/t.topic/c.channel/timers/4096-64",
        "data/queues/t.topic/c.channel/timers/4096000-4096",
    ]


def test_legal_names_that_mean_something_to_a_file_system_are_harmless() -> None:
    assert LAYOUT.topic_log("..") == "data/queues/...topic/queue"
    # A channel cannot be mistaken for its topic's own log, nor one topic for another.
    assert LAYOUT.channel("t", "queue") != LAYOUT.topic_log("t")
    assert LAYOUT.topic("a.topic") != LAYOUT.topic("a")


def test_what_was_laid_out_is_found_again() -> None:
    files = FakeFiles()
    assert LAYOUT.scan(files) == {}
    for path in (
        LAYOUT.topic_log("t"),
        LAYOUT.channel_log("t", "c"),
        LAYOUT.deferred_log("t", "c"),
        LAYOUT.channel_log("t", ".."),
        LAYOUT.topic_log("a.topic"),
        LAYOUT.channel_log("e#ephemeral", "c"),
    ):
        files.make_directory(path)
    assert LAYOUT.scan(files) == {"t": ["..", "c"], "a.topic": [], "e#ephemeral": ["c"]}


def test_what_is_not_ours_is_passed_over() -> None:
    files = FakeFiles()
    for path in (
        "data/queues/x y.topic",
        "data/queues/lost+found",
        "data/queues/t.topic/$.channel",
    ):
        files.make_directory(path)
    assert LAYOUT.scan(files) == {"t": []}
