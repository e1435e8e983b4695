"""``nsqpy export-original``: what it writes, says and refuses."""

import json
from pathlib import Path

import pytest

from nsqpy.core.layout import Layout
from nsqpy.storage.diskqueue import DiskQueue
from nsqpy.storage.files import DirLock, OSFiles
from nsqpy.tools.export_original import main
from tests.unit.fakes import FakeListener, batch_of

PROGRAM = "nsqpy export-original"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A stopped daemon's data: two messages in a channel, one deferred."""
    root = tmp_path / "source"
    layout = Layout(str(root))
    for directory, batch in (
        (layout.channel_log("t", "c"), batch_of(b"one", b"two")),
        (layout.deferred_log("t", "c"), batch_of(b"later", deliver_at_ns=7)),
    ):
        queue = DiskQueue(
            OSFiles(),
            directory,
            name="c",
            segment_max_bytes=1 << 20,
            sync_every=1000,
            listener=FakeListener(),
        )
        queue.open()
        queue.append([batch], held=False)
        queue.close()
    return root


def contents(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def test_all_is_written_and_nothing_changed(
    capsys: pytest.CaptureFixture[str], source: Path, tmp_path: Path
) -> None:
    before = contents(source)
    target = tmp_path / "new" / "target"
    assert main([f"--data-path={source}", f"--to={target}"], PROGRAM) == 0
    assert contents(source) == before
    written = contents(target)
    assert sorted(written) == [*("nsqd.dat", "t:c.diskqueue.000000.dat", "t:c.diskqueue.meta.dat")]
    data = written["t:c.diskqueue.000000.dat"]
    assert written["t:c.diskqueue.meta.dat"] == b"3\n0,0\n0,%d\n" % len(data)
    assert data.endswith(b"later")
    assert json.loads(written["nsqd.dat"])["topics"][0]["channels"] == [
        {"name": "c", "paused": False}
    ]
    printed = capsys.readouterr()
    assert printed.out == f"t: 0 messages\nt:c: 3 messages\n3 messages written to {target}\n"
    assert printed.err == f"{PROGRAM}: 1 deferred message written as due at once\n"


def test_damage_is_told(capsys: pytest.CaptureFixture[str], source: Path, tmp_path: Path) -> None:
    segment = Path(Layout(str(source)).channel_log("t", "c")) / "00000000000000000001.segment"
    damaged = bytearray(segment.read_bytes())
    damaged[-1] ^= 1
    segment.write_bytes(damaged)
    assert main([f"--data-path={source}", f"--to={tmp_path / 'target'}"], PROGRAM) == 1
    printed = capsys.readouterr()
    assert printed.out.endswith(f"1 message written to {tmp_path / 'target'}\n")
    assert f"{segment}: bytes 16 to {len(damaged)} are damaged and left out" in printed.err


def test_a_running_daemon_is_left_alone(
    capsys: pytest.CaptureFixture[str], source: Path, tmp_path: Path
) -> None:
    lock = DirLock(str(source))
    try:
        assert main([f"--data-path={source}", f"--to={tmp_path / 'target'}"], PROGRAM) == 1
    finally:
        lock.release()
    assert "a daemon is running on it" in capsys.readouterr().err
    assert not (tmp_path / "target").exists()


def test_a_directory_in_use_is_left_alone(capsys: pytest.CaptureFixture[str], source: Path) -> None:
    assert main([f"--data-path={source}", f"--to={source}"], PROGRAM) == 1
    assert "is not empty" in capsys.readouterr().err


def test_no_source(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([f"--data-path={tmp_path / 'no'}", f"--to={tmp_path / 'to'}"], PROGRAM) == 1
    expected = f"{PROGRAM}: {tmp_path / 'no'}: No such file or directory\n"
    assert capsys.readouterr().err == expected
    assert not (tmp_path / "to").exists()


def test_a_finished_export_is_left_alone(
    capsys: pytest.CaptureFixture[str], source: Path, tmp_path: Path
) -> None:
    arguments = [f"--data-path={source}", f"--to={tmp_path / 'to'}"]
    assert main(arguments, PROGRAM) == 0
    finished = contents(tmp_path / "to")
    capsys.readouterr()
    assert main(arguments, PROGRAM) == 1
    expected = f"{PROGRAM}: {tmp_path / 'to'}: is not empty: give a new directory\n"
    assert capsys.readouterr().err == expected
    assert contents(tmp_path / "to") == finished
