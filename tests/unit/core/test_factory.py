"""Making topics and channels, and what is left of one that cannot be made."""

import pytest

from nsqpy.config import Durability
from nsqpy.core.lease import LeaseState
from nsqpy.errors import StorageError
from tests.unit.core.leasing import Tenant
from tests.unit.core.node import Node


@pytest.mark.parametrize("log", ["queue", "deferred"])
def test_nothing_is_left_of_a_channel_that_cannot_be_made(log: str) -> None:
    node = Node()
    node.broker.topic("t")
    node.files.fail("make_directory", path=f"c.channel/{log}")
    with pytest.raises(StorageError):
        node.broker.create_channel("t", "c")
    assert node.broker.health.startswith("NOK - ")
    node.crash()
    assert list(node.broker.topics["t"].channels) == []
    node.broker.create_channel("t", "c")


def test_a_lease_that_a_kill_left_unsynced_survives_the_power_cut_that_follows() -> None:
    """The start takes its messages out of the channel's log for good; so the record of the lease,
    which the killed process had written and not synced, has to be on the device before."""
    node = Node(durability=Durability.FSYNC)
    node.subscribe("t", "c", ready_count=0).leave()
    assert node.publish("t", b"1", b"2", b"3") is None
    tenant = Tenant(node)
    tenant.ask("one")
    for _ in range(100):  # until its record is written
        node.sync()
        node.turn()
        if any("leases/journal" in path for path in node.files.paths(".segment")):
            break
    node.crash()
    node.lose_power()
    channel = node.channel("t", "c")
    assert channel.depth + channel.leased_count == 3
    assert channel.leases is not None
    assert [lease.state for lease in channel.leases.leases()] == [LeaseState.LEASED]
