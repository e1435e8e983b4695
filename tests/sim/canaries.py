"""Broken variants of what nsqpy does when bits flip and deliveries fail: each must be noticed."""

from collections.abc import Iterator

from nsqpy.core.dead_letters import DeadLetters, bodies_of
from nsqpy.core.window import Run
from nsqpy.errors import CorruptionError, NSQError
from nsqpy.storage.bad_blocks import BadBlocks
from nsqpy.storage.block import decode_block
from nsqpy.storage.journal import Journal
from nsqpy.storage.segment import BadStretch, Segment, StoredBlock

__all__ = ["CANARIES"]

_honest_blocks = Segment.blocks
_honest_replay = Journal.replay


def _give_up_the_rest(
    segment: Segment, offset: int, max_bytes: int
) -> Iterator[StoredBlock | BadStretch]:
    """One damaged block costs all that follows it in the segment."""
    for item in _honest_blocks(segment, offset, max_bytes):
        reason = "damaged"
        if isinstance(item, StoredBlock):
            try:
                decode_block(item.header, item.frames, segment.path, item.offset)
            except CorruptionError as error:
                reason = error.reason
            else:
                yield item
                continue
        yield BadStretch(item.offset, segment.size, reason)
        return


def _throw_away(bad_blocks: BadBlocks, segment: Segment, stretch: BadStretch) -> None:
    """What is damaged is passed over in silence."""


def _start_journal_anew(journal: Journal) -> list[tuple[int, int]]:
    """Nothing was acknowledged, whatever the journal says."""
    _honest_replay(journal)
    return []


def _bury_at_once(letters: DeadLetters, run: Run, failure: str) -> None:
    """A dead letter leaves its channel before its topic has it."""
    run.acknowledge(0, len(run))
    letters.count += len(run)

    def ignore(error: NSQError | None) -> None:
        """It is gone anyway."""

    letters._publish(letters.topic, bodies_of(run), ignore)


CANARIES: list[tuple[type, str, object]] = [
    (Segment, "blocks", _give_up_the_rest),
    (BadBlocks, "set_aside", _throw_away),
    (Journal, "replay", _start_journal_anew),
    (DeadLetters, "bury", _bury_at_once),
]
