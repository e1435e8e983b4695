"""``nsqd.dat``: the original's form, both ways."""

import pytest

from nsqpy.errors import StorageError
from nsqpy.storage.metadata import TopicMetadata, load_metadata, save_metadata
from tests.unit.fakes import FakeFiles

PATH = "data/nsqd.dat"


@pytest.fixture
def files() -> FakeFiles:
    files = FakeFiles()
    files.make_directory("data")
    return files


def load(files: FakeFiles, content: bytes) -> tuple[list[TopicMetadata], list[str]]:
    files.put(PATH, content)
    return load_metadata(files, "data")


def test_the_file_is_the_originals(files: FakeFiles) -> None:
    save_metadata(files, "data", [TopicMetadata("t1", False, {"c1": False, "c2": True})])
    assert files.content(PATH) == (
        b'{"topics":[{"name":"t1","paused":false,"channels":[{"name":"c1","paused":false},'
        b'{"name":"c2","paused":true}]}],"version":"1.3.0"}'
    )


def test_what_was_saved_is_loaded(files: FakeFiles) -> None:
    topics = [TopicMetadata("a", True, {}), TopicMetadata("b", False, {"x": True})]
    save_metadata(files, "data", topics)
    assert load_metadata(files, "data") == (topics, [])


def test_a_configuration_is_a_key_more_that_the_original_ignores(files: FakeFiles) -> None:
    topics = [TopicMetadata("t", False, {"c": False, "d": True}, {"d": {"max_attempts": 3}})]
    save_metadata(files, "data", topics)
    assert (
        b'[{"name":"c","paused":false},{"name":"d","paused":true,"config":{"max_attempts":3}}]'
    ) in files.content(PATH)
    assert load_metadata(files, "data") == (topics, [])


def test_a_configuration_that_is_no_object_is_none(files: FakeFiles) -> None:
    content = b'{"topics":[{"name":"t","channels":[{"name":"c","config":[1]}]}]}'
    assert load(files, content) == ([TopicMetadata("t", False, {"c": False})], [])


def test_no_file_is_a_fresh_start(files: FakeFiles) -> None:
    assert load_metadata(files, "data") == ([], [])


@pytest.mark.parametrize(
    ("content", "topics"),
    [
        (b"{}", []),
        (b'{"topics":null,"version":"1.3.0"}', []),
        (b'{"topics":[{"name":"t","channels":null}]}', [TopicMetadata("t", False, {})]),
        (
            b'{"extra":1,"topics":[{"name":"t","more":2,"channels":[{"name":"c"}]}]}',
            [TopicMetadata("t", False, {"c": False})],
        ),
    ],
)
def test_what_is_missing_has_a_default(
    files: FakeFiles, content: bytes, topics: list[TopicMetadata]
) -> None:
    assert load(files, content) == (topics, [])


def test_invalid_names_are_skipped_with_a_warning(files: FakeFiles) -> None:
    content = b'{"topics":[{"name":"a b"},{"name":"t","channels":[{"name":"$"},{"name":"c"}]}]}'
    assert load(files, content) == (
        [TopicMetadata("t", False, {"c": False})],
        ["skipping creation of invalid topic a b", "skipping creation of invalid channel $"],
    )


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff", b'{"topics":[1]}', b'{"topics":[{}]}', b'{"topics":[{"name":3}]}'],
)
def test_what_is_no_metadata_is_refused(files: FakeFiles, content: bytes) -> None:
    with pytest.raises(StorageError, match=r"failed to parse metadata in data/nsqd\.dat - "):
        load(files, content)


def test_a_file_that_cannot_be_read_is_refused(files: FakeFiles) -> None:
    files.put(PATH, b"{}")
    files.fail("read")
    with pytest.raises(StorageError, match=r"failed to read metadata from data/nsqd\.dat - No sp"):
        load_metadata(files, "data")


def test_a_failed_save_leaves_the_old_file(files: FakeFiles) -> None:
    save_metadata(files, "data", [TopicMetadata("old", False, {})])
    files.fail("write")
    with pytest.raises(StorageError, match=r"data/nsqd\.dat: No space left on device"):
        save_metadata(files, "data", [TopicMetadata("new", False, {})])
    assert load_metadata(files, "data")[0] == [TopicMetadata("old", False, {})]
