"""A consumer's standing in its channel."""

import pytest

from nsqpy.core.subscription import Subscription
from tests.unit.fakes import FakeConsumer


@pytest.fixture
def subscription() -> Subscription:
    return Subscription(FakeConsumer(), msg_timeout_ns=1)


@pytest.mark.parametrize(
    ("ready_count", "in_flight_count", "credit"),
    [(0, 0, 0), (5, 0, 5), (5, 3, 2), (5, 5, 0), (2, 5, 0)],
)
def test_rdy_is_a_ceiling_on_what_is_in_flight(
    subscription: Subscription, ready_count: int, in_flight_count: int, credit: int
) -> None:
    subscription.ready_count = ready_count
    subscription.in_flight_count = in_flight_count
    assert subscription.credit == credit


@pytest.mark.parametrize("state", ["blocked", "closing"])
def test_there_is_none_for_whoever_does_not_read_or_is_leaving(
    subscription: Subscription, state: str
) -> None:
    subscription.ready_count = 5
    setattr(subscription, state, True)
    assert subscription.credit == 0


def test_a_timeout_is_needed() -> None:
    with pytest.raises(AssertionError):
        Subscription(FakeConsumer(), msg_timeout_ns=0)
