"""What a previous process left of a log: its segments, and what of them is acknowledged."""

import logging
from itertools import pairwise

from nsqpy.message import FRAME_HEADER_BYTES
from nsqpy.storage.bad_blocks import BadBlocks
from nsqpy.storage.block import BLOCK_HEADER_BYTES
from nsqpy.storage.files import Files
from nsqpy.storage.journal import JOURNAL_SUFFIX
from nsqpy.storage.segment import SEGMENT_HEADER_BYTES, SEGMENT_SUFFIX, Segment

__all__ = ["find_segments", "next_number"]

log = logging.getLogger(__name__)


def find_segments(files: Files, directory: str, name: str, bad_blocks: BadBlocks) -> list[Segment]:
    """The segments in ``directory``, in order, as they are to be gone on with. What stands behind
    the last good block of all is cut off: the end of a write that was torn, or damage, which is
    set aside before. Journals that belong to no segment are removed. ``name`` is how log lines
    call the log. Only the last segment is left open.

    Raises:
        OSError: the directory or a file in it cannot be read, or not be mended.
    """
    names = files.list_directory(directory)
    segments: list[Segment] = []
    for entry in names:
        number = entry.removesuffix(SEGMENT_SUFFIX)
        if number != entry and number.isdecimal():
            segments.append(Segment(files, directory, int(number)))
    for segment, following in pairwise(segments):
        _measure(segment, following.first_number)
    if segments:
        last = segments[-1]
        for stretch in last.recover():
            bad_blocks.set_aside(last, stretch)
        cut = last.trim()
        if cut:
            log.warning("%s: cut %d torn bytes off %s", name, cut, last.path)
    journals = {entry for entry in names if entry.endswith(JOURNAL_SUFFIX)}
    for segment in segments:
        entry = segment.journal.path.rpartition("/")[2]
        if entry in journals:
            journals.remove(entry)
            segment.replay_journal()
    for segment in segments[:-1]:
        if _is_short(segment):
            log.error("%s: %s is too short for its messages: some are lost", name, segment.path)
    for entry in journals:  # of segments that were deleted: their numbers may come again
        files.remove(f"{directory}/{entry}")
    return segments


def _measure(segment: Segment, following_number: int) -> None:
    """Take a segment that is not the last one as it is, without reading it."""
    file = segment.opened()
    segment.size = file.size()
    # Only sealed segments may be followed by a gap, but a power cut may take the seal.
    gap_free = following_number - segment.first_number
    segment.records = min(gap_free, segment.size // FRAME_HEADER_BYTES)
    segment.outstanding = segment.records
    segment.file = None
    file.close()


def _is_short(segment: Segment) -> bool:
    """Whether a segment that is not the last cannot hold what stands in it, going by its seal or
    by the name of the next one. (So it is too if a power cut took the seal and not the deletion
    behind it; then nothing is lost.)"""
    least = BLOCK_HEADER_BYTES + segment.records * FRAME_HEADER_BYTES
    return segment.size < SEGMENT_HEADER_BYTES + least


def next_number(segments: list[Segment]) -> int:
    """The number of the record that is appended to them next."""
    if not segments:
        return 1
    last = segments[-1]
    if last.sealed:  # what was behind it has gone: a new segment begins, with a name of its own
        return max(last.stop_number, last.first_number + 1)
    return last.stop_number
