"""The way of dead letters: which topic takes whose, there, and back again."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from nsqpy.clock import Instant
from nsqpy.core.catalogue import Catalogue
from nsqpy.core.channel import Channel
from nsqpy.core.dead_letters import REDRIVE_CHANNEL, DeadLetterPolicy, dead_letter_topic
from nsqpy.core.topic import ExitingError, Ticket, Topic
from nsqpy.errors import ConfigError, NSQError, StorageError

__all__ = ["DeadLetterOffice"]

log = logging.getLogger(__name__)

_REDRIVE_MAX_BYTES = 64 * 1024 * 1024  # what one call holds in memory


class DeadLetterOffice:
    """``open_topic`` gives the dead letter topic of a name, made if it is new, with the channel
    ``redrive``; it raises ExitingError and StorageError."""

    __slots__ = ("_catalogue", "_open_topic")

    def __init__(self, catalogue: Catalogue, open_topic: Callable[[str], Topic]) -> None:
        self._catalogue = catalogue
        self._open_topic = open_topic

    def policy_of(self, channel: Channel) -> DeadLetterPolicy:
        """The channel's policy, with the name of its dead letter topic."""
        letters = channel.dead_letters
        policy = DeadLetterPolicy() if letters is None else letters.policy
        return replace(policy, dead_letter_topic=_topic_of(channel, policy))

    def set_policy(self, channel: Channel, policy: DeadLetterPolicy) -> None:
        """From here on failed deliveries of the channel are treated as ``policy`` says.

        Raises:
            ConfigError: the dead letter topic cannot be this, or is that of another channel, so
                that nobody could tell whose messages a redrive takes from there.
        """
        target = _topic_of(channel, policy)
        for topic in self._catalogue.topics.values():
            for other in topic.channels.values():
                letters = other.dead_letters
                if target and other is not channel and letters and letters.topic == target:
                    reason = f"dead_letter_topic is that of {topic.name}:{other.name} already"
                    raise ConfigError("dead_letter_topic", target, reason)
        channel.set_policy(policy, target, self._publish)

    def restore_policy(self, channel: Channel, document: dict[str, Any]) -> None:
        """Take up what ``set_policy`` set before the start, as it was written down."""
        try:
            policy = DeadLetterPolicy.from_json(document)
            channel.set_policy(policy, _topic_of(channel, policy), self._publish)
        except ConfigError as error:
            log.error("CHANNEL(%s): ignoring its configuration - %s", channel.name, error)

    def _publish(
        self, name: str, bodies: list[bytes], on_done: Callable[[NSQError | None], None]
    ) -> None:
        ticket = Ticket(bodies, on_done=lambda done: on_done(done.error))
        try:
            topic = self._open_topic(name)
        except (ExitingError, StorageError) as error:
            ticket.complete(error)
        else:
            topic.publish(ticket)

    def redrive(self, channel: Channel, max_messages: int, now: Instant) -> tuple[int, int]:
        """Send dead letters back to their channel, as new messages.

        Returns how many went, which is some 64 MiB at most, and how many are left.

        Raises:
            StorageError: those that were not sent back are dead letters still.
        """
        topics = self._catalogue.topics
        letters = channel.dead_letters
        dead = None if letters is None else topics.get(letters.topic)
        source = None if dead is None else dead.channels.get(REDRIVE_CHANNEL)
        if source is None:
            return 0, 0
        topic = topics[channel.topic_name]
        count = source.hand_over(
            max_messages,
            _REDRIVE_MAX_BYTES,
            lambda bodies: topic.publish_to(channel, bodies, now),
        )
        log.info(
            "CHANNEL(%s): %d messages sent back from %s", channel.name, count, source.topic_name
        )
        return count, source.depth


def _topic_of(channel: Channel, policy: DeadLetterPolicy) -> str:
    return dead_letter_topic(policy, channel.topic_name, channel.name)
