"""Heartbeats and the end of silent connections, by hand."""

from itertools import pairwise

import pytest

from nsqpy.clock import SECOND
from nsqpy.core.deadlines import NEVER
from nsqpy.daemon.heartbeats import Heartbeats

INTERVAL_NS = 30 * SECOND
START_NS = 1000 * SECOND


class Peer:
    """A connection whose bytes are said to have gone when the test says so."""

    def __init__(self, interval_ns: int = INTERVAL_NS) -> None:
        self.deadline_ns = NEVER
        self.received_ns = self.sent_ns = START_NS
        self.blocked_since_ns = 0
        self.progressing = False
        self.heartbeat_interval_ns = interval_ns
        self.write_timeout_ns = 0
        self.beats: list[int] = []
        self.aborted = ""

    def note_progress(self, now_ns: int) -> None:
        if self.progressing:
            self.blocked_since_ns = now_ns

    def beat(self, now_ns: int) -> None:
        self.beats.append(now_ns - START_NS)
        self.sent_ns = now_ns

    def abort(self, why: str) -> None:
        self.aborted = why


class Timer:
    """Runs the heartbeats at every deadline until a time after the start."""

    def __init__(self) -> None:
        self.heartbeats = Heartbeats()

    def run_until(self, until_ns: int) -> None:
        while (soonest_ns := self.heartbeats.soonest_ns()) != NEVER:
            if soonest_ns - START_NS > until_ns:
                return
            self.heartbeats.run(soonest_ns)


@pytest.fixture
def timer() -> Timer:
    return Timer()


def seconds(beats: list[int]) -> list[float]:
    return [beat / SECOND for beat in beats]


def test_a_silent_peer_gets_one_heartbeat_and_then_the_end(timer: Timer) -> None:
    peer = Peer()
    timer.heartbeats.watch(peer)
    timer.run_until(60 * SECOND - 1)
    assert (seconds(peer.beats), peer.aborted) == ([30], "")
    timer.run_until(60 * SECOND)
    assert peer.aborted == "was silent for two heartbeats"
    assert timer.heartbeats.soonest_ns() == NEVER


def test_a_peer_that_answers_lives_and_gets_one_each_interval(timer: Timer) -> None:
    peer = Peer()
    timer.heartbeats.watch(peer)
    for interval in range(1, 6):
        timer.run_until(interval * INTERVAL_NS)
        peer.received_ns = START_NS + interval * INTERVAL_NS + SECOND
    assert seconds(peer.beats) == [30, 60, 90, 120, 150]
    assert peer.aborted == ""


def test_traffic_both_ways_takes_their_place(timer: Timer) -> None:
    peer = Peer()
    timer.heartbeats.watch(peer)
    for second in range(1, 120):
        timer.run_until(second * SECOND)
        peer.received_ns = peer.sent_ns = START_NS + second * SECOND
    assert peer.beats == []


def test_traffic_one_way_does_not(timer: Timer) -> None:
    """A client drops a connection that is silent towards it; one that only reads must be asked."""
    for side in ("received_ns", "sent_ns"):
        peer = Peer()
        timer.heartbeats.watch(peer)
        for second in range(1, 59):
            timer.run_until(second * SECOND)
            setattr(peer, side, START_NS + second * SECOND)
        assert seconds(peer.beats)[0] == 30
        assert peer.aborted == ""
        timer.heartbeats.forget(peer)


def test_no_interval_goes_by_without_a_sign_of_life(timer: Timer) -> None:
    peer = Peer()
    timer.heartbeats.watch(peer)
    for second in range(1, 46):
        timer.run_until(second * SECOND)
        peer.received_ns = START_NS + second * SECOND
        if second == 20:
            peer.sent_ns = START_NS + second * SECOND
    timer.run_until(80 * SECOND)
    sent = [20.0, *seconds(peer.beats)]
    assert all(later - sooner <= 30 for sooner, later in pairwise(sent))
    assert len(peer.beats) == 2


def test_one_that_takes_nothing_is_ended_after_an_interval(timer: Timer) -> None:
    peer = Peer()
    timer.heartbeats.watch(peer)
    peer.blocked_since_ns = START_NS + SECOND
    for second in range(1, 200):
        peer.received_ns = START_NS + second * SECOND
        timer.run_until(second * SECOND)
        if peer.aborted:
            break
    assert peer.aborted == "does not read what it is sent"
    assert 31 <= second <= 61


def test_a_write_timeout_takes_the_place_of_the_interval(timer: Timer) -> None:
    for timeout_seconds in (5, 100):
        peer = Peer()
        peer.write_timeout_ns = timeout_seconds * SECOND
        timer.heartbeats.watch(peer)
        peer.blocked_since_ns = START_NS + SECOND
        timer.heartbeats.watch(peer)  # as a connection does when it can write no more
        timer.run_until((1 + timeout_seconds) * SECOND - 1)
        assert peer.aborted == ""
        timer.run_until((1 + timeout_seconds) * SECOND)
        assert peer.aborted == "does not read what it is sent"


def test_a_heartbeat_may_be_what_is_too_much(timer: Timer) -> None:
    class Full(Peer):
        def beat(self, now_ns: int) -> None:
            super().beat(now_ns)
            self.blocked_since_ns = now_ns
            timer.heartbeats.watch(self)

    peer = Full()
    timer.heartbeats.watch(peer)
    timer.run_until(60 * SECOND - 1)
    assert (seconds(peer.beats), peer.aborted) == ([30], "")
    timer.run_until(60 * SECOND)
    assert peer.aborted == "does not read what it is sent"
    assert timer.heartbeats.soonest_ns() == NEVER


def test_one_that_takes_something_however_slowly_is_not_ended(timer: Timer) -> None:
    peer = Peer()
    timer.heartbeats.watch(peer)
    peer.blocked_since_ns = START_NS + SECOND
    peer.progressing = True
    for second in range(1, 200):
        peer.received_ns = START_NS + second * SECOND
        timer.run_until(second * SECOND)
    assert not peer.aborted


def test_without_heartbeats_there_are_no_deadlines(timer: Timer) -> None:
    timer.heartbeats.watch(Peer(0))
    assert timer.heartbeats.soonest_ns() == NEVER


def test_watching_again_takes_the_new_interval(timer: Timer) -> None:
    peer = Peer()
    timer.heartbeats.watch(peer)
    peer.heartbeat_interval_ns = SECOND
    timer.heartbeats.watch(peer)
    assert timer.heartbeats.soonest_ns() == START_NS + SECOND
    peer.heartbeat_interval_ns = 0
    timer.heartbeats.watch(peer)
    assert timer.heartbeats.soonest_ns() == NEVER


def test_a_forgotten_connection_is_left_alone(timer: Timer) -> None:
    peer = Peer()
    timer.heartbeats.watch(peer)
    timer.heartbeats.forget(peer)
    timer.heartbeats.forget(peer)
    timer.run_until(1000 * SECOND)
    assert (peer.beats, peer.aborted) == ([], "")


def test_connections_do_not_disturb_each_other(timer: Timer) -> None:
    peers = [Peer(interval * SECOND) for interval in (1, 2, 60)]
    for peer in peers:
        timer.heartbeats.watch(peer)
    timer.run_until(4 * SECOND)
    assert [bool(peer.aborted) for peer in peers] == [True, True, False]
    assert [seconds(peer.beats) for peer in peers] == [[1], [2], []]
