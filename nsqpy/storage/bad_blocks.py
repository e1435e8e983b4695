"""What is damaged in a log: kept in files beside it, for salvage, told and counted."""

import logging

from nsqpy.storage.files import Files
from nsqpy.storage.segment import BadStretch, Segment

__all__ = ["BadBlocks"]

log = logging.getLogger(__name__)


class BadBlocks:
    """Those of one log, which log lines call ``name``. ``count`` is how many were set aside."""

    __slots__ = ("_files", "_name", "count")

    def __init__(self, files: Files, name: str) -> None:
        self._files = files
        self._name = name
        self.count = 0

    def set_aside(self, segment: Segment, stretch: BadStretch) -> None:
        """Copy damaged bytes to a ``.bad`` file beside the segment.

        Raises:
            OSError: they cannot be read.
        """
        offset, stop, reason = stretch
        damaged = segment.opened().read_at(stop - offset, offset)
        self.count += 1
        path = f"{segment.path}.{offset}.bad"
        log.error(
            "%s: %s at byte %d: %s; set aside in %s", self._name, segment.path, offset, reason, path
        )
        try:
            self._files.replace_whole(path, damaged)
        except OSError as error:
            # On a full disk the messages behind the damage matter more than the damage.
            log.error("%s: cannot write %s: %s", self._name, path, error)

    def note_lost(self, segment: Segment, count: int) -> None:
        """So many messages of the segment will not come: they are in what was set aside, or have
        gone with the end of the file."""
        log.error("%s: %d messages of %s are lost", self._name, count, segment.path)
