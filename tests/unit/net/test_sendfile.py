"""Opening the files of a reply. Sending them is in tests/integration/test_lease_api.py."""

import errno
import os
from pathlib import Path

import pytest

from nsqpy.net.sendfile import FilePart, close_parts, open_parts


def open_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name in "ab":
        (tmp_path / name).write_bytes(b"0123456789")
    return [str(tmp_path / name) for name in "ab"]


def test_what_is_open_stays_whatever_happens_to_the_names(files: list[str]) -> None:
    opened = open_parts([FilePart(files[0], 2, 3), FilePart(files[1], 0, 10)])
    for name in files:
        Path(name).unlink()
    assert [os.pread(part.fd, part.length, part.offset) for part in opened] == [
        *(b"234", b"0123456789"),
    ]
    close_parts(opened)


def test_all_or_none(files: list[str]) -> None:
    before = open_count()
    whole = FilePart(files[0], 0, 10)
    for bad in (FilePart(files[1], 5, 6), FilePart(files[1] + "x", 0, 1)):
        with pytest.raises(OSError, match=r"cut off|No such file"):
            open_parts([whole, bad])
    assert open_count() == before


def test_the_last_descriptors_are_left_to_the_queues(
    files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_count()
    parts = [FilePart(files[0], 0, 10), FilePart(files[1], 0, 10)]
    opened = open_parts(parts)
    taken = max(part.fd for part in opened)
    close_parts(opened)
    monkeypatch.setattr("nsqpy.net.sendfile.first_reserved_descriptor", lambda: taken)
    with pytest.raises(OSError, match="Too many open files") as caught:
        open_parts(parts)
    assert caught.value.errno == errno.EMFILE
    assert open_count() == before
