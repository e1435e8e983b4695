"""Drives gnsq, the gevent client. See ``conversation`` for the words.

gnsq 1.0.2 sends no ``msg_timeout`` in IDENTIFY, so its consumers live with the daemon's own.
"""

import sys

import gevent
import gnsq
from gevent.fileobject import FileObject

from tests.interop.drivers.conversation import Options, order_for, say, say_message

HEARTBEAT = b"_heartbeat_"


def publish(options: Options) -> None:
    producer = gnsq.Producer(
        [options.tcp_address], heartbeat_interval=options.heartbeat_interval_ms // 1000
    )
    producer.start()

    def report(command: str, reply: bytes) -> None:
        say("published", command=command, reply=reply.decode("latin-1"))

    for body in options.single:
        report("pub", producer.publish(options.topic, body.encode("latin-1")))
    if options.batch:
        bodies = [body.encode("latin-1") for body in options.batch]
        report("mpub", producer.multipublish(options.topic, bodies))
    for body in options.deferred:
        reply = producer.publish(options.topic, body.encode("latin-1"), defer=options.defer_ms)
        report("dpub", reply)
    producer.close()


def consume(options: Options) -> None:
    parked: list[gnsq.Message] = []

    def touch(message: gnsq.Message, count: int, every_ms: int) -> None:
        for _ in range(count):
            message.touch()
            gevent.sleep(every_ms / 1000)
        message.finish()

    def handle(_consumer: gnsq.Consumer, message: gnsq.Message) -> None:
        message.enable_async()
        say_message(message.body, message.attempts)
        order = order_for(message.body, message.attempts)
        if order.verb == "finish":
            message.finish()
        elif order.verb == "requeue":
            message.requeue(time_ms=order.numbers[0], backoff=False)
        elif order.verb == "touch":
            gevent.spawn(touch, message, *order.numbers)
        elif order.verb == "park":
            parked.append(message)

    def see_response(_consumer: gnsq.Consumer, response: bytes) -> None:
        if response == HEARTBEAT:
            say("heartbeat")

    consumer = gnsq.Consumer(
        options.topic,
        options.channel,
        [options.tcp_address] if options.tcp_address else [],
        list(options.lookupd_http_addresses),
        lookupd_poll_interval=1,
        max_in_flight=options.max_in_flight,
        heartbeat_interval=options.heartbeat_interval_ms // 1000,
    )
    # Both are kept by name here: blinker holds its receivers by weak reference.
    consumer.on_message.connect(handle)
    consumer.on_response.connect(see_response)
    consumer.start(block=False)

    for _line in FileObject(sys.stdin.buffer, "rb"):
        while parked:
            parked.pop(0).finish()
    consumer.close()


if __name__ == "__main__":
    OPTIONS = Options.from_arguments()
    if OPTIONS.mode == "publish":
        publish(OPTIONS)
    else:
        consume(OPTIONS)
