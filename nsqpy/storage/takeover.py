"""Take over a data directory that the original wrote, and write one for it to take back.

The import is one rename: everything is written below ``queues.import/`` and synced, then its
``queues`` becomes the daemon's own. ``takeover.json`` comes along in it and says which files have
thereby been imported; they are then moved aside, and the note is removed. Whoever is killed in
front of the rename has imported nothing, behind it everything: the next start does the rest.
"""

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from nsqpy.clock import SECOND
from nsqpy.errors import StorageError
from nsqpy.names import is_ephemeral, is_valid_name
from nsqpy.storage.diskqueue import DiskQueue
from nsqpy.storage.files import File, Files
from nsqpy.storage.metadata import (
    METADATA_FILE,
    TopicMetadata,
    load_metadata,
    save_metadata,
)
from nsqpy.storage.original import (
    OriginalQueue,
    OriginalWriter,
    Positions,
    find_queues,
    parse_meta,
    read_records,
    remaining_files,
)
from nsqpy.storage.salvage import Found, salvage
from nsqpy.storage.segment import SEGMENT_SUFFIX, BadStretch

__all__ = ["STAGING", "Damage", "GivenBack", "Places", "Takeover", "give_back"]

log = logging.getLogger(__name__)

STAGING = "queues.import"
_QUEUES = "queues"
_NOTE = "takeover.json"
_SYNC_BYTES = 64 * 1024 * 1024
_UNBOUNDED_OPERATIONS = 1 << 62


class Places(Protocol):
    """Where the logs of a data directory are: ``core.layout.Layout``."""

    def topic_log(self, topic: str) -> str: ...
    def channel_log(self, topic: str, channel: str) -> str: ...
    def channel_logs(self, files: Files, topic: str, channel: str) -> list[str]: ...
    def scan(self, files: Files) -> dict[str, list[str]]: ...


class _NobodyListens:
    """An import flushes and syncs its logs itself."""

    def note_acked(self, queue_log: DiskQueue) -> None: ...
    def note_unsynced(self, queue_log: DiskQueue) -> None: ...
    def note_sync_overdue(self, queue_log: DiskQueue) -> None: ...
    def note_moved(self, queue_log: DiskQueue) -> None: ...

    def note_unlinked(self, file: File) -> None:
        file.close()


class Takeover:
    """One import into ``root``; ``places_in`` tells where logs are below a given directory.

    ``files`` must sync the names of the directories it makes. ``body_max_bytes`` is
    ``--max-msg-size``: a longer record counts as damage, as in the original.
    """

    def __init__(
        self,
        files: Files,
        root: str,
        places_in: Callable[[str], Places],
        *,
        body_max_bytes: int,
        segment_max_bytes: int,
    ) -> None:
        self._files = files
        self._root = root
        self._current = places_in(root)
        self._staged = places_in(f"{root}/{STAGING}")
        self._body_max_bytes = body_max_bytes
        self._segment_max_bytes = segment_max_bytes

    def run(self, wall_ns: int) -> None:
        """Import what the original left, if anything. Not done twice, however it is interrupted.

        Raises:
            StorageError: nothing is imported, and nothing of the original's is changed; or the
                import is done and the old files could not all be moved: the next start goes on.
        """
        try:
            self._run(wall_ns)
        except OSError as error:
            raise StorageError.of(self._root, error) from error

    def _run(self, wall_ns: int) -> None:
        names = self._files.list_directory(self._root)
        if _QUEUES in names and self._has_note():
            self._move_aside()
            names = self._files.list_directory(self._root)
        if STAGING in names:
            self._files.remove_tree(f"{self._root}/{STAGING}")
        queues = find_queues(names)
        if not queues:
            return
        if self._has_messages():
            count = sum(len(queue.file_names) for queue in queues)
            reason = (
                f"holds {_QUEUES}/ with messages of nsqpy and also {count} files of the original "
                f"(*.diskqueue.*): move one of the two away"
            )
            raise StorageError(self._root, reason)
        try:
            self._stage(queues, _free_name(names, wall_ns))
        except (OSError, StorageError):
            self._files.remove_tree(f"{self._root}/{STAGING}")  # it may be what fills the disk
            raise
        if _QUEUES in names:
            self._files.remove_tree(f"{self._root}/{_QUEUES}")  # directories without messages
        self._files.rename(f"{self._root}/{STAGING}/{_QUEUES}", f"{self._root}/{_QUEUES}")
        self._move_aside()

    def _has_note(self) -> bool:
        return _NOTE in self._files.list_directory(f"{self._root}/{_QUEUES}")

    def _has_messages(self) -> bool:
        for topic, channels in self._current.scan(self._files).items():
            logs = [self._current.topic_log(topic)]
            for channel in channels:
                logs += self._current.channel_logs(self._files, topic, channel)
            for directory in logs:
                names = self._files.list_directory(directory)
                if any(name.endswith(SEGMENT_SUFFIX) for name in names):
                    return True
        return False

    # -- import -----------------------------------------------------------------------------

    def _stage(self, queues: list[OriginalQueue], aside: str) -> None:
        staged = f"{self._root}/{STAGING}/{_QUEUES}"
        self._files.make_directory(staged)
        log.info("taking over %d queues of the original in %s", len(queues), self._root)
        for queue in queues:
            names = [queue.topic] if queue.channel is None else [queue.topic, queue.channel]
            if not all(is_valid_name(name) for name in names):
                log.warning("%s: not a queue's name; not imported", queue.prefix)
            elif any(is_ephemeral(name) for name in names):
                log.info("%s: ephemeral; not imported", queue.prefix)
            else:
                self._import(queue)
        note = {"aside": aside, "files": [name for queue in queues for name in queue.file_names]}
        self._files.replace_whole(f"{staged}/{_NOTE}", json.dumps(note).encode())

    def _import(self, queue: OriginalQueue) -> None:
        if queue.channel is None:
            label = f"TOPIC({queue.topic})"
            directory = self._staged.topic_log(queue.topic)
        else:
            label = f"TOPIC({queue.topic}) CHANNEL({queue.channel})"
            directory = self._staged.channel_log(queue.topic, queue.channel)
        positions = self._positions(queue, label)
        queue_log = DiskQueue(
            self._files,
            directory,
            name=label,
            segment_max_bytes=self._segment_max_bytes,
            sync_every=_UNBOUNDED_OPERATIONS,
            listener=_NobodyListens(),
        )
        queue_log.open()
        try:
            before = queue_log.depth  # of a queue whose name is spelt with the other separator
            remaining = remaining_files(queue, positions)
            for number, offset in remaining:
                self._import_file(queue_log, queue.data_name(number), offset, label)
            imported = queue_log.depth - before
        finally:
            queue_log.close()
        expected = "" if positions is None else f"; its own count was {positions.depth}"
        log.info(
            "%s: took over %d messages from %d files%s", label, imported, len(remaining), expected
        )

    def _positions(self, queue: OriginalQueue, label: str) -> Positions | None:
        if not queue.has_meta:
            log.warning("%s: no %s: taking everything there is", label, queue.meta_name)
            return None
        try:
            return parse_meta(self._files.read_whole(f"{self._root}/{queue.meta_name}"))
        except ValueError as error:
            log.warning("%s: %s: %s: taking everything", label, queue.meta_name, error)
            return None

    def _import_file(self, queue_log: DiskQueue, name: str, offset: int, label: str) -> None:
        file = self._files.open(f"{self._root}/{name}")
        unsynced = 0
        try:
            for item in read_records(file, offset, self._body_max_bytes):
                if isinstance(item, BadStretch):
                    log.error(
                        "%s: %s at byte %d: %s; %d bytes not imported, 'nsqpy salvage' reads them",
                        *(label, name, item.offset, item.reason, item.stop - item.offset),
                    )
                    continue
                queue_log.append([item.batch], held=False)
                unsynced += len(item.batch.data)
                if unsynced >= _SYNC_BYTES:  # also lets go of the files that are full
                    unsynced = 0
                    _sync(queue_log)
        finally:
            file.close()
        _sync(queue_log)

    # -- after the commit -------------------------------------------------------------------

    def _move_aside(self) -> None:
        """The import is done: its sources go out of the way, then the note that says so."""
        root = self._root
        note_path = f"{root}/{_QUEUES}/{_NOTE}"
        note = _parse_note(note_path, self._files.read_whole(note_path))
        aside = f"{root}/{note.aside}"
        self._files.make_directory(aside)
        metadata = self._metadata()
        self._sync_names(root, metadata)  # the renamed directory is there for good
        standing = set(self._files.list_directory(root))
        for name in note.files:
            if name in standing:
                self._files.rename(f"{root}/{name}", f"{aside}/{name}")
        self._sync_names(aside, metadata)  # the original finds its metadata beside its files
        self._sync_names(root, metadata)
        self._files.remove(note_path)
        self._files.remove_tree(f"{root}/{STAGING}")
        log.info("the original's %d files are in %s now", len(note.files), aside)

    def _metadata(self) -> bytes:
        try:
            return self._files.read_whole(f"{self._root}/{METADATA_FILE}")
        except FileNotFoundError:
            return b'{"topics":null}'

    def _sync_names(self, directory: str, metadata: bytes) -> None:
        # Replacing a file syncs its directory, and with it every name that has changed there.
        self._files.replace_whole(f"{directory}/{METADATA_FILE}", metadata)


class _Note(NamedTuple):
    aside: str
    files: list[str]


def _parse_note(path: str, content: bytes) -> _Note:
    try:
        document = json.loads(content)
        return _Note(document["aside"], document["files"])
    except (ValueError, TypeError, KeyError) as error:
        raise StorageError(path, f"cannot be read: {error}") from error


def _free_name(names: list[str], wall_ns: int) -> str:
    day = f"original-{datetime.fromtimestamp(wall_ns // SECOND, UTC):%Y-%m-%d}"
    name, count = day, 1
    while name in names:
        count += 1
        name = f"{day}-{count}"
    return name


def _sync(queue_log: DiskQueue) -> None:
    files = queue_log.take_unsynced()
    for file in files:
        file.sync()
    queue_log.end_sync(files, safe=True)


# --- the way back ---


class Damage(NamedTuple):
    """A stretch of a file that could not be given back."""

    path: str
    offset: int
    stop: int
    reason: str


@dataclass(slots=True)
class GivenBack:
    """What was written for one queue; ``deferred`` of the ``messages`` lost their delay."""

    topic: str
    channel: str | None
    messages: int = 0
    deferred: int = 0
    damaged: list[Damage] = field(default_factory=list)


def give_back(
    files: Files, source: str, places: Places, target: str, max_bytes_per_file: int
) -> Iterator[GivenBack]:
    """Write all that ``source`` owes into ``target``, an empty directory, as the original would.

    ``source`` is only read. The metadata comes last: without it the original starts empty.

    Raises:
        StorageError, OSError: ``target`` is not complete.
    """
    found = places.scan(files)
    listed, _ = load_metadata(files, source)
    for topic, channels in found.items():
        given = GivenBack(topic, None)
        writer = OriginalWriter(files, target, topic, max_bytes_per_file)
        _copy(files, places.topic_log(topic), writer, given)
        writer.close()
        yield given
        for channel in channels:
            given = GivenBack(topic, channel)
            writer = OriginalWriter(files, target, f"{topic}:{channel}", max_bytes_per_file)
            for directory in places.channel_logs(files, topic, channel):
                _copy(files, directory, writer, given)
            writer.close()
            yield given
    save_metadata(files, target, _complete(listed, found))


def _copy(files: Files, directory: str, writer: OriginalWriter, given: GivenBack) -> None:
    for name in files.list_directory(directory):
        if not name.endswith(SEGMENT_SUFFIX):
            continue
        path = f"{directory}/{name}"
        for item in salvage(files, path, body_max_bytes=0, unacknowledged=True):
            if isinstance(item, Found):
                writer.write(item.batch)
                given.messages += len(item.batch)
                given.deferred += len(item.batch) if item.batch.deliver_at_ns else 0
            else:
                given.damaged.append(Damage(path, *item))


def _complete(listed: list[TopicMetadata], found: dict[str, list[str]]) -> list[TopicMetadata]:
    """The metadata with what has a directory and is not listed yet; the original's keys only."""
    known = {entry.name: TopicMetadata(entry.name, entry.paused, {}) for entry in listed}
    for entry in listed:
        known[entry.name].channels.update(entry.channels)
    for topic, channels in found.items():
        entry = known.setdefault(topic, TopicMetadata(topic, False, {}))
        for channel in channels:
            entry.channels.setdefault(channel, False)
    return list(known.values())
