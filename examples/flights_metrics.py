"""The demo's second consumer: a client that this project did not write (ansq), as a process.

    python -m examples.flights_metrics HOST:PORT TOPIC CHANNEL COUNT

It reports as JSON lines: ``{"count": ...}`` now and then, and when ``COUNT`` messages have come,
the whole tally. Then it ends.
"""

import asyncio
import json
import sys
import time

import ansq

from examples.flights_data import Tally

__all__: list[str] = []

READY_COUNT = 2_500
REPORT_EVERY = 5_000


def report(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


async def consume(address: str, topic: str, channel: str, count: int) -> None:
    host, _, port = address.rpartition(":")
    options = ansq.ConnectionOptions(auto_reconnect=False)
    connection = await ansq.open_connection(host, int(port), connection_options=options)
    await connection.subscribe(topic, channel, READY_COUNT)
    tally = Tally()
    started = 0.0
    async for message in connection.messages():
        started = started or time.monotonic()
        tally.add_json([message.body])
        await message.fin()
        if tally.total == count:
            break
        if tally.total % REPORT_EVERY == 0:
            report(count=tally.total)
    seconds = time.monotonic() - started
    report(count=tally.total, seconds=seconds, tally=tally.as_fields())
    await connection.close()


if __name__ == "__main__":
    ADDRESS, TOPIC, CHANNEL, COUNT = sys.argv[1:]
    asyncio.run(consume(ADDRESS, TOPIC, CHANNEL, int(COUNT)))
