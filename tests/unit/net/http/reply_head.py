"""A reply's head as tests compare it."""

from nsqpy.net.http import Reply

__all__ = ["head"]


def head(reply: Reply) -> list[str]:
    """Status line and headers, without the date, sorted but for the first."""
    lines = reply.encode(http10=False, keep_alive=True).decode().partition("\r\n\r\n")[0]
    first, *rest = lines.split("\r\n")
    return [first, *sorted(line for line in rest if not line.startswith("Date: "))]
