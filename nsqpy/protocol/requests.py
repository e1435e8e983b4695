"""What a client sends, as bytes: one encoder for each command, and the joined forms.

Names are checked by the caller (``nsqpy.names``); numbers are in the unit of the wire,
milliseconds. Source: Commands in docs/protocol.md.
"""

import json
import struct
from collections.abc import Mapping, Sequence

__all__ = [
    "CLS",
    "MAGIC",
    "NOP",
    "auth",
    "dpub",
    "fin",
    "fin_many",
    "identify",
    "mpub",
    "pub",
    "rdy",
    "req",
    "sub",
    "touch",
]

MAGIC = b"  V2"
CLS = b"CLS\n"
NOP = b"NOP\n"

_SIZE = struct.Struct(">i")
_TWO_SIZES = struct.Struct(">ii")


def identify(fields: Mapping[str, object]) -> bytes:
    body = json.dumps(fields, separators=(",", ":")).encode()
    return b"IDENTIFY\n" + _SIZE.pack(len(body)) + body


def auth(secret: str) -> bytes:
    body = secret.encode()
    return b"AUTH\n" + _SIZE.pack(len(body)) + body


def sub(topic: str, channel: str) -> bytes:
    return f"SUB {topic} {channel}\n".encode()


def pub(topic: str, body: bytes) -> bytes:
    return b"PUB %b\n%b%b" % (topic.encode(), _SIZE.pack(len(body)), body)


def dpub(topic: str, delay_ms: int, body: bytes) -> bytes:
    return b"DPUB %b %d\n%b%b" % (topic.encode(), delay_ms, _SIZE.pack(len(body)), body)


def mpub(topic: str, bodies: Sequence[bytes]) -> bytes:
    """One MPUB of all bodies: total size, count, then size and bytes of each."""
    pack = _SIZE.pack
    records = b"".join([part for body in bodies for part in (pack(len(body)), body)])
    sizes = _TWO_SIZES.pack(_SIZE.size + len(records), len(bodies))
    return b"MPUB %b\n%b%b" % (topic.encode(), sizes, records)


def rdy(ready_count: int) -> bytes:
    return b"RDY %d\n" % ready_count


def fin(message_id: bytes) -> bytes:
    return b"FIN %b\n" % message_id


def fin_many(message_ids: Sequence[bytes]) -> bytes:
    """The FINs of at least one message, joined."""
    return b"FIN " + b"\nFIN ".join(message_ids) + b"\n"


def req(message_id: bytes, delay_ms: int) -> bytes:
    return b"REQ %b %d\n" % (message_id, delay_ms)


def touch(message_id: bytes) -> bytes:
    return b"TOUCH %b\n" % message_id
