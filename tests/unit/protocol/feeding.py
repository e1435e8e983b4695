"""What tests of the command parser share: bytes to feed, in pieces, and how to compare."""

from nsqpy.protocol.commands import Command, CommandParser, Finish, Publish

__all__ = ["in_pieces", "joined", "mpub", "number", "sized"]


def number(value: int) -> bytes:
    """An int32 of the wire."""
    return value.to_bytes(4, "big", signed=True)


def sized(body: bytes) -> bytes:
    return number(len(body)) + body


def mpub(*bodies: bytes) -> bytes:
    """What follows the line of an MPUB."""
    return sized(number(len(bodies)) + b"".join(map(sized, bodies)))


def in_pieces(parser: CommandParser, data: bytes, step: int = 1) -> list[Command]:
    commands: list[Command] = []
    for at in range(0, len(data), step):
        commands += parser.feed(data[at : at + step])
    return commands


def joined(commands: list[Command]) -> list[Command]:
    """Runs put together, because where they are cut depends on the reads."""
    result: list[Command] = []
    for command in commands:
        last = result[-1] if result else None
        if isinstance(command, Finish) and isinstance(last, Finish):
            result[-1] = Finish([*last.ids, *command.ids])
        elif (
            isinstance(command, Publish)
            and isinstance(last, Publish)
            and (command.verb, last.verb) == ("PUB", "PUB")
            and command.topic == last.topic
        ):
            replies = last.replies + command.replies
            result[-1] = Publish("PUB", command.topic, last.bodies + command.bodies, replies, 0)
        else:
            result.append(command)
    return result
