"""Consumers that finish most messages, and hand back, touch or forget the others."""

import asyncio
import random
from enum import Enum, auto

from nsqpy.protocol import requests
from nsqpy.protocol.frames import BadFrame, ErrorFrame, Frame, FrameParser, MessageFrames
from tests.chaos.ledger import ChannelBook
from tests.chaos.target import ChaosError, Target
from tests.chaos.wire import ANSWER_SECONDS

__all__ = ["consume"]

_RECONNECT_SECONDS = 0.02
_MSG_TIMEOUT_MS = 2000
_DELAY_MAX_MS = 2000
# Heartbeats come at this interval, so that silence for ANSWER_SECONDS is a failure.
_HEARTBEAT_MS = 2000


class _Fate(Enum):
    FINISH = auto()
    REQUEUE = auto()
    DEFER = auto()
    TOUCH = auto()
    FORGET = auto()


_WEIGHTS = {_Fate.FINISH: 85, _Fate.REQUEUE: 6, _Fate.DEFER: 6, _Fate.TOUCH: 2, _Fate.FORGET: 1}


class _Reader:
    """What one connection does with what it is sent."""

    def __init__(
        self, book: ChannelBook, rng: random.Random, life: int, calm: asyncio.Event
    ) -> None:
        self._book = book
        self._rng = rng
        self._life = life
        self._calm = calm

    def answers(self, frames: list[Frame]) -> bytes:
        return b"".join([self._answer(frame) for frame in frames])

    def _answer(self, frame: Frame) -> bytes:
        match frame:
            case MessageFrames():
                return b"".join(
                    [
                        self._decide(message_id, self._book.receive(message_id, body))
                        for _, _, message_id, body in frame.messages
                    ]
                )
            case ErrorFrame(data) if data.startswith(b"E_REQ_FAILED REQ "):
                self._book.hold_refused(data.split()[2])
            case ErrorFrame(data) if not data.startswith((b"E_FIN_FAILED", b"E_TOUCH_FAILED")):
                raise ChaosError(f"a consumer was told {data.decode(errors='replace')}")
            case BadFrame(reason):
                raise ChaosError(f"a consumer was sent no frame: {reason}")
            case _ if getattr(frame, "data", b"") == b"_heartbeat_":
                return requests.NOP
            case _:
                pass
        return b""

    def _decide(self, message_id: bytes, key: bytes) -> bytes:
        fate = _Fate.FINISH
        if not self._calm.is_set():
            fate = self._rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        match fate:
            case _Fate.REQUEUE:
                return requests.req(message_id, 0)
            case _Fate.DEFER:
                delay_ms = self._rng.randint(1, _DELAY_MAX_MS)
                self._book.hold(message_id, key, delay_ms, self._life)
                return requests.req(message_id, delay_ms)
            case _Fate.FORGET:
                return b""
            case _:
                self._book.finish(key, self._life)
                touch = requests.touch(message_id) if fate is _Fate.TOUCH else b""
                return touch + requests.fin(message_id)


async def consume(
    target: Target, book: ChannelBook, rng: random.Random, calm: asyncio.Event
) -> None:
    """Consume until cancelled; from ``calm`` on every message is finished."""
    while True:
        life = target.lives.now
        try:
            stream, writer = await asyncio.open_connection("127.0.0.1", target.tcp_port)
        except OSError:
            await asyncio.sleep(_RECONNECT_SECONDS)
            continue
        parser, reader = FrameParser(), _Reader(book, rng, life, calm)
        try:
            writer.write(_hello(book, rng))
            while data := await asyncio.wait_for(stream.read(1 << 16), ANSWER_SECONDS):
                writer.write(reader.answers(parser.feed(data)))
        except TimeoutError as error:
            reason = f"nothing, not even a heartbeat, for {ANSWER_SECONDS:g} s"
            raise ChaosError(f"{book.topic}/{book.channel} was sent {reason}") from error
        except OSError:
            pass
        finally:
            writer.close()


def _hello(book: ChannelBook, rng: random.Random) -> bytes:
    greeting = {
        "client_id": "chaos",
        "heartbeat_interval": _HEARTBEAT_MS,
        "msg_timeout": _MSG_TIMEOUT_MS,
        "output_buffer_timeout": 25,
    }
    return b"".join(
        (
            requests.MAGIC,
            requests.identify(greeting),
            requests.sub(book.topic, book.channel),
            requests.rdy(rng.choice((1, 10, 100))),
        )
    )
