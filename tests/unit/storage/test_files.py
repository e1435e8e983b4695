"""The real file system behind the seam, and the lock."""

import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from nsqpy.storage.files import DirLock, OSFiles
from tests.unit.fakes import FakeFiles


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path)


@pytest.fixture
def files() -> OSFiles:
    return OSFiles()


class TestFile:
    def test_bytes_are_written_and_read_where_they_are_said_to_be(
        self, files: OSFiles, root: str
    ) -> None:
        file = files.open(f"{root}/f", create=True)
        file.write_at([b"abc", b"", b"def"], 0)
        file.write_at([b"XY"], 2)
        assert file.size() == 6
        assert file.read_at(100, 0) == b"abXYef"
        assert file.read_at(2, 3) == b"Ye"
        assert file.read_at(5, 6) == b""
        file.truncate(3)
        file.sync()
        assert file.read_at(9, 0) == b"abX"
        file.close()

    def test_more_buffers_than_the_system_takes_at_once(self, files: OSFiles, root: str) -> None:
        file = files.open(f"{root}/f", create=True)
        buffers = [b"%d," % index for index in range(5000)]
        file.write_at(buffers, 0)
        assert file.read_at(1 << 20, 0) == b"".join(buffers)
        file.close()

    def test_a_short_write_is_completed(
        self, files: OSFiles, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def pwritev_short(fd: int, buffers: Sequence[bytes], offset: int) -> int:
            return os.pwrite(fd, b"".join(buffers)[:4], offset)

        file = files.open(f"{root}/f", create=True)
        monkeypatch.setattr(os, "pwritev", pwritev_short)
        file.write_at([b"abc", b"defghi"], 0)
        assert file.read_at(100, 0) == b"abcdefghi"
        file.close()

    def test_a_short_read_is_completed(
        self, files: OSFiles, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = files.open(f"{root}/f", create=True)
        file.write_at([b"abcdefghi"], 0)
        pread = os.pread

        def pread_short(fd: int, count: int, offset: int) -> bytes:
            return pread(fd, min(count, 2), offset)

        monkeypatch.setattr(os, "pread", pread_short)
        assert file.read_at(5, 1) == b"bcdef"
        assert file.read_at(50, 1) == b"bcdefghi"
        file.close()

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
    def test_a_full_disk_is_an_oserror(self, files: OSFiles) -> None:
        file = files.open("/dev/full")
        with pytest.raises(OSError, match="No space left") as caught:
            file.write_at([b"a"], 0)
        assert caught.value.errno == errno.ENOSPC
        file.close()

    def test_files_are_private(self, files: OSFiles, root: str) -> None:
        files.make_directory(f"{root}/a/b")
        files.open(f"{root}/a/b/f", create=True).close()
        assert Path(f"{root}/a/b/f").stat().st_mode & 0o777 == 0o600
        assert Path(f"{root}/a/b").stat().st_mode & 0o777 == 0o700


class TestTree:
    """The fake has to agree with the real one."""

    @pytest.fixture(params=["real", "fake"])
    def tree(self, request: pytest.FixtureRequest, root: str) -> OSFiles | FakeFiles:
        if request.param == "real":
            return OSFiles()
        files = FakeFiles()
        files.make_directory(root)
        return files

    def test_directories(self, tree: OSFiles | FakeFiles, root: str) -> None:
        assert tree.list_directory(f"{root}/a") == []
        tree.make_directory(f"{root}/a/b")
        tree.make_directory(f"{root}/a/b")
        tree.open(f"{root}/a/z", create=True).close()
        tree.open(f"{root}/a/b/f", create=True).close()
        assert tree.list_directory(f"{root}/a") == ["b", "z"]
        tree.remove_tree(f"{root}/a")
        tree.remove_tree(f"{root}/a")
        assert tree.list_directory(root) == []

    def test_what_is_not_there(self, tree: OSFiles | FakeFiles, root: str) -> None:
        with pytest.raises(FileNotFoundError):
            tree.open(f"{root}/f")
        with pytest.raises(FileNotFoundError):
            tree.open(f"{root}/none/f", create=True)
        with pytest.raises(FileNotFoundError):
            tree.read_whole(f"{root}/f")
        with pytest.raises(FileNotFoundError):
            tree.remove(f"{root}/f")
        with pytest.raises(FileNotFoundError):
            tree.rename(f"{root}/f", f"{root}/g")

    def test_replacing_and_renaming(self, tree: OSFiles | FakeFiles, root: str) -> None:
        tree.replace_whole(f"{root}/f", b"a long first content")
        tree.replace_whole(f"{root}/f", b"second")
        tree.rename(f"{root}/f", f"{root}/g")
        assert tree.read_whole(f"{root}/g") == b"second"
        assert tree.list_directory(root) == ["g"]

    def test_a_file_lives_on_while_it_is_open(self, tree: OSFiles | FakeFiles, root: str) -> None:
        file = tree.open(f"{root}/f", create=True)
        file.write_at([b"abc"], 0)
        tree.remove(f"{root}/f")
        assert file.read_at(3, 0) == b"abc"
        file.close()
        assert tree.list_directory(root) == []


def test_a_failed_replacement_leaves_the_old_content(files: OSFiles, root: str) -> None:
    files.replace_whole(f"{root}/f", b"old")
    Path(f"{root}/f.tmp").mkdir()
    with pytest.raises(IsADirectoryError):
        files.replace_whole(f"{root}/f", b"new")
    assert files.read_whole(f"{root}/f") == b"old"


class TestDirLock:
    def test_one_holder_at_a_time(self, root: str) -> None:
        lock = DirLock(root)
        with pytest.raises(BlockingIOError):
            DirLock(root)
        lock.release()
        DirLock(root).release()

    def test_no_directory_no_lock(self, root: str) -> None:
        with pytest.raises(FileNotFoundError):
            DirLock(f"{root}/none")

    def test_the_lock_ends_with_the_process_and_is_not_inherited(self, root: str) -> None:
        lock = DirLock(root)
        with subprocess.Popen(
            [sys.executable, "-c", "print(flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            close_fds=False,
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()  # it runs
            lock.release()
            DirLock(root).release()
            child.communicate(b"\n")
