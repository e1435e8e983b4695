"""A flipped bit on the disk of the real daemon costs the block it hits, and is told."""

from nsqpy import Consumer
from tests.conftest import StartDaemon

BODIES = [b"message %d" % number for number in range(20)]


async def received(address: str, count: int) -> set[bytes]:
    bodies = set()
    async with Consumer("t", "c", nsqd=address, max_in_flight=10) as consumer:
        async for message in consumer:
            bodies.add(message.body)
            message.finish()
            if len(bodies) == count:
                break
    return bodies


async def test_a_flipped_bit_costs_one_message_and_is_told(start_nsqd: StartDaemon) -> None:
    daemon = start_nsqd("--mem-queue-size=0")
    daemon.request("/topic/create?topic=t", method="POST")
    daemon.request("/channel/create?topic=t&channel=c", method="POST")
    for body in BODIES:
        daemon.publish("t", body)
    daemon.kill()
    (segment,) = daemon.data_path.glob("queues/t.topic/c.channel/queue/*.segment")
    content = bytearray(segment.read_bytes())
    content[content.index(b"message 7")] ^= 0x10
    segment.write_bytes(content)
    daemon.start()
    found = await received(daemon.tcp_address, len(BODIES) - 1)
    assert found == {*BODIES} - {b"message 7"}
    assert daemon.wait_channel("t", "c", depth=0, in_flight_count=0)["bad_block_count"] == 1
    metrics = daemon.request("/metrics").text
    assert 'nsqd_channel_bad_blocks_total{topic="t",channel="c"} 1\n' in metrics
    (bad,) = segment.parent.glob("*.bad")
    assert f"set aside in {bad}" in daemon.log
    assert "checksum of the block does not match" in daemon.log
