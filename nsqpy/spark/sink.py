"""``df.write.format("nsq")``: rows to messages, published in batches, at least once.

A task that Spark repeats publishes again, and nothing can be taken back. Source: docs/spark.md.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)

from nsqpy.client.nodes import HTTPNode, NodeAddress, NodeUnavailable, find_nodes, secured
from nsqpy.clock import SECOND
from nsqpy.errors import ConfigError, NSQError
from nsqpy.names import is_valid_name
from nsqpy.spark.options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["NSQWriter", "Published", "RowError", "RowPublisher", "SinkColumns"]

log = logging.getLogger(__name__)

_BODY_NAMES = ("body", "value")
_TEXT_TYPES = (StringType, BinaryType)
_INTEGER_TYPES = (IntegerType, LongType)
# Of one MPUB; a node that takes less is sent less.
_BATCH_MAX_BYTES = 1 << 20
_BATCH_MAX_MESSAGES = 5_000
_COUNT_BYTES = _SIZE_BYTES = 4
_PAUSE_S = 0.2


class RowError(NSQError):
    """A row that no node would take; the text says why."""


@dataclass
class Published(WriterCommitMessage):
    """What a task has done: how many messages, for which query (empty for a batch job)."""

    messages: int
    query_id: str


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Where the rows have what. ``topic`` and ``defer_ms`` may be missing: None."""

    body: str
    topic: str | None
    defer_ms: str | None

    @classmethod
    def of(cls, schema: StructType, options: WriteOptions, overwrite: bool) -> "SinkColumns":
        """Raises ConfigError, which says what is wrong with the DataFrame or the options."""
        if overwrite:
            raise ConfigError(
                "mode", "overwrite", 'the nsq sink cannot overwrite; use mode("append")'
            )
        bodies = [name for name in _BODY_NAMES if name in schema.names]
        if len(bodies) != 1:
            raise ConfigError(
                "schema", "", f"the nsq sink needs a column body or value, one of them; it was "
                f"given {schema.simpleString()}",
            )  # fmt: skip
        allowed: dict[str, tuple[type[DataType], ...]] = {
            bodies[0]: _TEXT_TYPES,
            "topic": (StringType,),
            "defer_ms": _INTEGER_TYPES,
        }
        for column in schema.fields:
            if column.name not in allowed:
                raise ConfigError(
                    "schema", column.name, f"the nsq sink does not know what to do with column "
                    f"{column.name}: leave it out; it takes {', '.join(allowed)}",
                )  # fmt: skip
            if not isinstance(column.dataType, allowed[column.name]):
                raise ConfigError(
                    "schema", column.name, f"column {column.name} cannot be "
                    f"{column.dataType.simpleString()}",
                )  # fmt: skip
        topic = "topic" if "topic" in schema.names else None
        if topic is None and not options.topic:
            raise ConfigError("topic", "", "option topic is required where no column says it")
        return cls(bodies[0], topic, "defer_ms" if "defer_ms" in schema.names else None)


class NSQWriter(DataSourceArrowWriter):
    """The sink of a batch job."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        self._options = options
        self._columns = SinkColumns.of(schema, options, overwrite)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Published:
        return publish_rows(self._options, self._columns, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        log.info("published %d messages", published(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        log.warning("the job failed after %d messages were published", published(messages))


def published(messages: Sequence[WriterCommitMessage | None]) -> int:
    """How many messages the tasks have told of; one that failed tells nothing."""
    return sum(one.messages for one in messages if isinstance(one, Published))


def publish_rows(
    options: WriteOptions, columns: SinkColumns, batches: "Iterator[pa.RecordBatch]"
) -> Published:
    """Publish what one task is given.

    Raises:
        RowError: a row has no body, no topic, or a longer one than the node takes.
        NodeUnavailable: no node takes it, for as long as ``nodeTimeout`` says.
        NodeRefused: a node refused it.
    """
    context = TaskContext.get()
    first = context.partitionId() if context is not None else 0
    query_id = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    count = 0
    with RowPublisher(options, first) as publisher:
        for batch in batches:
            for topic, bodies, defer_ms in _messages(batch, columns, options.topic):
                publisher.publish(topic, bodies, defer_ms)
                count += len(bodies)
    return Published(count, query_id or "")


def _messages(
    batch: "pa.RecordBatch", columns: SinkColumns, topic: str
) -> Iterator[tuple[str, list[bytes], int]]:
    """The bodies of a batch for each topic and delay."""
    bodies = _bodies(batch, columns.body)
    if columns.topic is None and columns.defer_ms is None:
        if bodies:
            yield topic, bodies, 0
        return
    nothing = [None] * len(bodies)
    topics = _values(batch, columns.topic) if columns.topic else nothing
    delays = _values(batch, columns.defer_ms) if columns.defer_ms else nothing
    groups: dict[tuple[str, int], list[bytes]] = {}
    for body, named, delay in zip(bodies, topics, delays, strict=True):
        groups.setdefault((named or topic, delay or 0), []).append(body)
    for (named, delay), group in groups.items():
        if not is_valid_name(named):
            raise RowError(
                f"{named!r} is not a valid topic name" if named else "a row has no topic"
            )
        if delay < 0:
            raise RowError(f"defer_ms is {delay}; it must be 0 or more")
        yield named, group, delay


def _bodies(batch: "pa.RecordBatch", name: str) -> list[bytes]:
    import pyarrow as pa

    found = batch.column(name)
    if found.null_count:
        raise RowError(f"{found.null_count} rows have no {name}: it is null")
    bodies: list[bytes] = found.cast(pa.binary()).to_pylist()
    if b"" in bodies:
        raise RowError(f"a row has an empty {name}; nsqd takes no empty message")
    return bodies


def _values(batch: "pa.RecordBatch", name: str) -> list[Any]:
    values: list[Any] = batch.column(name).to_pylist()
    return values


class RowPublisher:
    """Publishes to one of several nodes, and to the next when that one does not take it.

    ``first`` chooses with whom to begin, so that tasks spread over the nodes.
    """

    def __init__(self, options: WriteOptions, first: int = 0) -> None:
        self._patience_s = options.node_timeout_ns / SECOND
        self._nodes = [
            HTTPNode(address, patience_s=0, secret=options.auth_secret, tls=options.tls)
            for address in _addresses(options)
        ]
        self._at = first % len(self._nodes)
        self._limits: dict[NodeAddress, tuple[int, int]] = {}

    def __enter__(self) -> "RowPublisher":
        return self

    def __exit__(self, *_: object) -> None:
        for node in self._nodes:
            node.close()

    def publish(self, topic: str, bodies: Sequence[bytes], defer_ms: int = 0) -> None:
        """Publish to whichever node takes it, in as many calls as its limits ask for."""
        at = 0
        deadline_s = time.monotonic() + self._patience_s
        while at < len(bodies):
            node = self._nodes[self._at]
            try:
                limits = self._limits_of(node)
                if defer_ms:
                    # The protocol has no deferred form of MPUB.
                    node.publish_deferred(topic, bodies[at], defer_ms)
                    at += 1
                else:
                    end = _fitting(bodies, at, *limits)
                    node.publish(topic, bodies[at:end])
                    at = end
            except NodeUnavailable as error:
                if time.monotonic() > deadline_s:
                    raise
                self._at = (self._at + 1) % len(self._nodes)
                log.warning("%s; trying %s", error, self._nodes[self._at].address)
                if self._at == 0:
                    time.sleep(_PAUSE_S)
            else:
                deadline_s = time.monotonic() + self._patience_s

    def _limits_of(self, node: HTTPNode) -> tuple[int, int]:
        """The longest message, and the longest body of ``/mpub``, in bytes."""
        if node.address not in self._limits:
            message_max, body_max = node.body_max_bytes()
            self._limits[node.address] = message_max, min(body_max, _BATCH_MAX_BYTES)
        return self._limits[node.address]


def _addresses(options: WriteOptions) -> Sequence[NodeAddress]:
    """Raises NodeUnavailable: no lookupd answers, or none knows a node."""
    if options.nsqd:
        return options.nsqd
    patience_s = options.node_timeout_ns / SECOND
    listed = find_nodes(options.lookupd, None, patience_s=patience_s, tls=options.tls)
    if not listed:
        asked = ", ".join(map(str, options.lookupd))
        raise NodeUnavailable(f"nsqlookupd {asked}", "it knows no nsqd")
    return listed if options.tls is None else [secured(address) for address in listed]


def _fitting(bodies: Sequence[bytes], start: int, message_max: int, body_max: int) -> int:
    """The end of what one MPUB carries, at least one message. Raises RowError."""
    length = _COUNT_BYTES
    end = start
    for body in bodies[start : start + _BATCH_MAX_MESSAGES]:
        if len(body) > message_max:
            raise RowError(f"a body of {len(body):,} bytes; the node takes {message_max:,}")
        length += _SIZE_BYTES + len(body)
        if length > body_max and end > start:
            break
        end += 1
    return end
