"""Frames, fed whole, byte by byte and with trailing data."""

import pytest

from nsqpy.protocol.frames import (
    CLOSE_WAIT_FRAME,
    HEARTBEAT_FRAME,
    OK_FRAME,
    BadFrame,
    ErrorFrame,
    Frame,
    FrameParser,
    MessageFrames,
    ResponseFrame,
    error_frame,
    response_frame,
)
from nsqpy.protocol.frames import MessageFields as Fields

ID = b"0123456789abcdef"


def encoded(fields: Fields) -> bytes:
    timestamp_ns, attempts, message_id, body = fields
    data = timestamp_ns.to_bytes(8, "big") + attempts.to_bytes(2, "big") + message_id + body
    return (len(data) + 4).to_bytes(4, "big") + b"\0\0\0\x02" + data


def sized(size: int, frame_type: int = 0) -> bytes:
    return size.to_bytes(4, "big", signed=True) + frame_type.to_bytes(4, "big")


MESSAGES: list[Fields] = [(1 << 60, 1, ID, b"one"), (2, 65535, ID, b""), (3, 7, ID, b"x" * 500)]
STREAM = (
    HEARTBEAT_FRAME
    + b"".join(map(encoded, MESSAGES))
    + OK_FRAME
    + error_frame(b"E_FIN_FAILED FIN x failed ID not in flight")
    + encoded(MESSAGES[0])
    + CLOSE_WAIT_FRAME
)
FRAMES: list[Frame] = [
    ResponseFrame(b"_heartbeat_"),
    MessageFrames(MESSAGES),
    ResponseFrame(b"OK"),
    ErrorFrame(b"E_FIN_FAILED FIN x failed ID not in flight"),
    MessageFrames(MESSAGES[:1]),
    ResponseFrame(b"CLOSE_WAIT"),
]


def flat(frames: list[Frame]) -> list[object]:
    """Frames with runs of messages taken apart, as how they are cut depends on the reads."""
    items: list[object] = []
    for frame in frames:
        if isinstance(frame, MessageFrames):
            items += frame.messages
        else:
            items.append(frame)
    return items


def test_constants_are_the_bytes_of_the_reference() -> None:
    assert bytes.fromhex("00000006 00000000 4f4b") == OK_FRAME
    assert HEARTBEAT_FRAME == b"\0\0\0\x0f\0\0\0\0_heartbeat_"
    assert response_frame(b"CLOSE_WAIT") == CLOSE_WAIT_FRAME
    assert error_frame(b"E_INVALID x") == b"\0\0\0\x0f\0\0\0\x01E_INVALID x"


def test_a_whole_stream_gives_runs_of_messages_in_one_frame() -> None:
    assert FrameParser().feed(STREAM) == FRAMES


@pytest.mark.parametrize("step", [1, 2, 7, 33, 34, 35, 100])
def test_a_stream_in_pieces_gives_the_same(step: int) -> None:
    parser = FrameParser()
    frames: list[Frame] = []
    for at in range(0, len(STREAM), step):
        frames += parser.feed(STREAM[at : at + step])
    assert flat(frames) == flat(FRAMES)


def test_an_unfinished_frame_waits_for_the_rest() -> None:
    parser = FrameParser()
    assert parser.feed(STREAM + OK_FRAME[:-1]) == FRAMES
    assert parser.feed(OK_FRAME[-1:]) == [ResponseFrame(b"OK")]


def test_an_empty_response_is_a_frame() -> None:
    assert FrameParser().feed(response_frame(b"")) == [ResponseFrame(b"")]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (sized(-1), "frame size -1 is too small"),
        (sized(3), "frame size 3 is too small"),
        (sized(101), "frame size 101 is over the limit of 100"),
        (sized(6, 3), "unknown frame type 3"),
        (sized(29, 2), "message frame of size 29 is too short"),
        (b"HTTP/1.1 400 Bad Request", "this is an HTTP port: give the TCP address of nsqd"),
    ],
)
def test_a_fault_is_the_last_frame_and_what_came_before_counts(data: bytes, reason: str) -> None:
    parser = FrameParser(frame_size_max_bytes=100)
    good = encoded(MESSAGES[0]) + OK_FRAME
    expected = [*MESSAGES[:1], ResponseFrame(b"OK"), BadFrame(reason)]
    assert flat(parser.feed(good + data)) == expected
    assert parser.feed(OK_FRAME) == []


def test_a_fault_right_behind_messages_is_seen() -> None:
    frames = FrameParser(100).feed(encoded(MESSAGES[0]) + sized(500, 2) + b"x" * 500)
    assert flat(frames) == [MESSAGES[0], BadFrame("frame size 500 is over the limit of 100")]


def test_a_frame_of_exactly_the_limit_passes() -> None:
    body = b"x" * 70
    assert flat(FrameParser(100).feed(encoded((1, 1, ID, body)))) == [(1, 1, ID, body)]


def test_a_large_body_in_small_reads_is_joined_once() -> None:
    body = bytes(range(256)) * 4096  # 1 MiB
    data = encoded((1, 1, ID, body)) + OK_FRAME
    parser = FrameParser()
    frames: list[Frame] = []
    for at in range(0, len(data), 1000):
        frames += parser.feed(data[at : at + 1000])
    assert flat(frames) == [(1, 1, ID, body), ResponseFrame(b"OK")]
