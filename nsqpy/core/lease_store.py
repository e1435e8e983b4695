"""What a channel's leases have on disk: a log for each, and a journal of what they went through.

The journal is a log like any other. A record is a message whose body is a JSON object with ``id``,
``event`` and what belongs to it. What has been superseded is acknowledged, so the journal lets go
of its segments by itself. Records that must come together or not at all are one block.

============  ==================================================================================
``taken``     ``serial`` of the directory, ``expires`` (Unix ns), ``count``, ``size``, ``splits``:
              from here on the lease exists
``sources``   in the same block: ``ranges`` of the channel's log, which are acknowledged there;
              when that is on disk, so is this record
``extended``  ``expires``
``read``      ``offset`` and ``length`` of bytes that were sent; or how many whole ``reads``
``ended``     ``state``, ``at`` (Unix ns) and ``serial``: the directory may be there a while longer;
              with ``disowned`` the ``sources`` never counted
============  ==================================================================================
"""

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

from nsqpy.clock import MILLISECOND
from nsqpy.core.layout import JOURNAL, lease_directories
from nsqpy.core.lease import Lease, LeaseState, Splits
from nsqpy.errors import StorageError
from nsqpy.message import FRAME_HEADER_BYTES, ID_BYTES, encode_batch
from nsqpy.storage.diskqueue import DiskQueue
from nsqpy.storage.files import Files

__all__ = ["JOURNAL_SEGMENT_BYTES", "LeaseStore"]

log = logging.getLogger(__name__)

# A start reads all of the journal's last segment.
JOURNAL_SEGMENT_BYTES = 1024 * 1024


class LeaseStore:
    """Below ``directory``, which is made with the first lease. ``remove`` takes directories that
    are not needed any more."""

    def __init__(
        self,
        files: Files,
        directory: str,
        open_log: Callable[[str], DiskQueue],
        open_journal: Callable[[str], DiskQueue],
        remove: Callable[[str], None],
    ) -> None:
        self._files = files
        self._directory = directory
        self._open_log = open_log
        self._open_journal = open_journal
        self._remove = remove
        self._journal: DiskQueue | None = None
        self._serial = 0
        self._past_bad_blocks = 0

    @property
    def bad_blocks(self) -> int:
        """Damaged stretches that were set aside, in the journal and in logs that are gone."""
        present = self._journal.bad_blocks if self._journal is not None else 0
        return self._past_bad_blocks + present

    # -- start ------------------------------------------------------------------------------

    def find(self, wall_ns: int) -> dict[int, str]:
        """The directories of leases that a previous process left, by serial number. New ones get
        higher numbers than any before: they count on from the time, in milliseconds.

        Raises:
            StorageError: they cannot be listed.
        """
        try:
            found = lease_directories(self._files, self._directory)
            names = self._files.list_directory(self._directory)
        except OSError as error:
            raise StorageError.of(self._directory, error) from error
        self._serial = max([*found, wall_ns // MILLISECOND])
        if names:
            self._opened()
        return found

    def replay(self) -> dict[str, Lease]:
        """The leases of the journal, as it knows them.

        Raises:
            StorageError: it cannot be read.
        """
        leases: dict[str, Lease] = {}
        for number, event in self._events():
            lease = leases.get(event["id"])
            if lease is None:
                lease = leases[event["id"]] = Lease(event["id"], 0, None)
                lease.state = LeaseState.LEASED
            _apply(lease, event, number)
            self._serial = max(self._serial, lease.serial)
        return leases

    def _events(self) -> Iterator[tuple[int, dict[str, Any]]]:
        journal = self._journal
        while journal is not None and journal.unread:
            for stored in journal.read():
                for index in range(stored.start, stored.stop):
                    frame = stored.batch.frames(index, index + 1)
                    number = stored.number + index - stored.start
                    yield number, json.loads(frame[FRAME_HEADER_BYTES:])

    def open(self, path: str) -> DiskQueue:
        """The log of a lease from before. Raises StorageError."""
        queue_log = self._open_log(path)
        queue_log.rest()
        return queue_log

    # -- logs -------------------------------------------------------------------------------

    def make(self, lease_id: str) -> Lease:
        """A lease with an empty log. Raises StorageError."""
        self._opened()
        self._serial += 1
        return Lease(lease_id, self._serial, self._open_log(self._path(self._serial)))

    def _path(self, serial: int) -> str:
        return f"{self._directory}/{serial:08d}"

    def scrap(self, lease: Lease) -> None:
        """Nothing of its log is owed any more. Damaged bytes that were set aside stay."""
        queue_log, lease.log = lease.log, None
        if queue_log is None:
            return
        self._past_bad_blocks += queue_log.bad_blocks
        queue_log.abandon()
        self.supersede(lease, "taken")
        path = self._path(lease.serial)
        try:
            names = self._files.list_directory(path)
            damaged = [name for name in names if name.endswith(".bad")]
            for name in names if damaged else ():
                if name not in damaged:
                    self._files.remove(f"{path}/{name}")
        except OSError as error:
            log.error("cannot remove %s: %s", path, error)  # the next start tries again
        else:
            if not damaged:
                self._remove(path)

    # -- journal ----------------------------------------------------------------------------

    def _opened(self) -> DiskQueue:
        if self._journal is None:
            self._journal = self._open_journal(f"{self._directory}/{JOURNAL}")
        return self._journal

    def record(self, lease: Lease, wall_ns: int) -> None:
        """From here on the lease exists.

        Raises:
            StorageError: it does not.
        """
        taken = {
            "id": lease.id,
            "event": "taken",
            "serial": lease.serial,
            "expires": lease.expires_ns,
            "count": lease.count,
            "size": lease.size,
            "splits": lease.splits.flat,
        }
        sources = {"id": lease.id, "event": "sources", "ranges": lease.sources}
        number = self._append([taken, sources], wall_ns)
        lease.records = {"taken": number, "sources": number + 1}

    def note(self, lease: Lease, wall_ns: int, event: str, **details: object) -> None:
        """Write down what happened to a lease, instead of the last event of the kind.

        Raises:
            StorageError: it is not written down.
        """
        kind = event if "offset" not in details else f"read {len(lease.records)}"
        number = self._append([{"id": lease.id, "event": event, **details}], wall_ns)
        self.supersede(lease, kind)
        lease.records[kind] = number
        if event == "ended" or "reads" in details:
            for other in list(lease.records):
                if other.startswith("read ") or (event == "ended" and other in _WHILE_LIVING):
                    self.supersede(lease, other)

    def _append(self, events: list[dict[str, Any]], wall_ns: int) -> int:
        bodies = [json.dumps(event, separators=(",", ":")).encode() for event in events]
        batch = encode_batch(bodies, b"0" * ID_BYTES * len(bodies), wall_ns)
        return self._opened().append([batch], held=True)

    def supersede(self, lease: Lease, kind: str) -> None:
        """What the journal says of this kind counts no more."""
        number = lease.records.pop(kind, None)
        if number is not None:
            self._opened().acknowledge(number, 1)

    def forget(self, lease: Lease) -> None:
        """The journal says nothing of the lease any more."""
        for kind in list(lease.records):
            self.supersede(lease, kind)

    def sync(self) -> None:
        """Return when all that was superseded is on the device. Raises StorageError."""
        journal = self._opened()
        journal.flush()
        journal.sync()

    def close(self) -> None:
        """Raises StorageError: not all of the journal may be on the device."""
        if self._journal is not None:
            self._journal.close()

    def abandon(self) -> None:
        """The directory is about to be removed."""
        if self._journal is not None:
            self._journal.abandon()


_WHILE_LIVING = ("extended", "read")


def _apply(lease: Lease, event: dict[str, Any], number: int) -> None:
    kind = event["event"]
    match kind:
        case "taken":
            lease.serial, lease.count = event["serial"], event["count"]
            lease.size, lease.splits = event["size"], Splits(event["splits"])
            lease.expires_ns = event["expires"]
        case "sources":
            lease.sources = event["ranges"]
        case "extended":
            lease.expires_ns = event["expires"]
        case "read" if "reads" in event:
            lease.reads, lease.covered = event["reads"], []
        case "read":
            kind = f"read {len(lease.records)}"
            lease.cover(event["offset"], event["length"])
        case "ended":
            lease.state, lease.ended_ns = LeaseState(event["state"]), event["at"]
            lease.serial = event["serial"]
            if event["disowned"]:
                lease.sources = []
    lease.records[kind] = number
