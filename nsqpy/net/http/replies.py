"""What is answered: a status, headers and a body as bytes, and refusals in the original's JSON."""

import time
from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus

from nsqpy.gojson import JSON, go_json

__all__ = ["EMPTY", "OK", "HTTPError", "Reply", "json_reply", "text_reply"]

_NSQ_HEADER = ("X-Nsq-Content-Type", "nsq; version=1.0")
_JSON_TYPE = "application/json; charset=utf-8"
_TEXT_TYPE = "text/plain; charset=utf-8"


class Reply:
    """A status, headers and a body, encoded once; may be sent any number of times.

    ``length`` is that of a body which is sent behind this one's bytes. ``close`` ends the
    connection after it.
    """

    __slots__ = ("body", "close", "head", "status")

    def __init__(
        self,
        status: int,
        body: bytes = b"",
        headers: Iterable[tuple[str, str]] = (),
        *,
        length: int | None = None,
        close: bool = False,
    ) -> None:
        self.head = _encode_head(status, headers, len(body) if length is None else length)
        self.body = body
        self.status = status
        self.close = close

    def encode(self, *, http10: bool, keep_alive: bool, with_body: bool = True) -> bytes:
        """The bytes on the wire. ``with_body`` is false for HEAD."""
        if http10:
            version, connection = b"HTTP/1.0", _KEEP_ALIVE if keep_alive else _END
        else:
            version, connection = b"HTTP/1.1", _END if keep_alive else _CLOSE
        parts = (version, self.head, _date(), connection, self.body if with_body else b"")
        return b"".join(parts)


def _encode_head(status: int, headers: Iterable[tuple[str, str]], length: int) -> bytes:
    lines = [f" {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers]
    # No reply to 204 has a length.
    lines += [f"Content-Length: {length}"] if status != HTTPStatus.NO_CONTENT else []
    lines.append("Date: ")
    # Targets that are no UTF-8 come as surrogates and may go into Location.
    return "\r\n".join(lines).encode(errors="surrogateescape")


_END = b"\r\n\r\n"
_KEEP_ALIVE = b"\r\nConnection: keep-alive\r\n\r\n"
_CLOSE = b"\r\nConnection: close\r\n\r\n"

_date_cache = (0, b"")


def _date() -> bytes:
    global _date_cache
    now_s = int(time.time())
    if _date_cache[0] != now_s:
        _date_cache = (now_s, formatdate(now_s, usegmt=True).encode())
    return _date_cache[1]


def text_reply(body: str | bytes, status: int = 200, *, nsq: bool = True) -> Reply:
    """Plain text; ``nsq`` adds the API's own header, which ``/ping`` and ``/debug`` go without."""
    data = body.encode(errors="surrogateescape") if isinstance(body, str) else body
    headers = [("Content-Type", _TEXT_TYPE)]
    return Reply(status, data, [*headers, _NSQ_HEADER] if nsq else headers)


def json_reply(
    value: JSON | bytes,
    status: int = 200,
    *,
    close: bool = False,
    headers: Iterable[tuple[str, str]] = (),
) -> Reply:
    """JSON, encoded here unless it is bytes already."""
    data = value if isinstance(value, bytes) else go_json(value)
    return Reply(status, data, [("Content-Type", _JSON_TYPE), _NSQ_HEADER, *headers], close=close)


OK = text_reply("OK")
EMPTY = Reply(200, headers=[_NSQ_HEADER])


class HTTPError(Exception):
    """A refusal with the original's code word, such as ``TOPIC_NOT_FOUND``.

    ``close`` ends the connection, for when the rest of the request is not going to be read.
    ``headers`` are more than every refusal has.
    """

    def __init__(
        self,
        status: int,
        code: str,
        *,
        close: bool = False,
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        super().__init__(status, code, close)
        self.status = status
        self.code = code
        self.close = close
        self.headers = headers

    def __str__(self) -> str:
        return f"{self.status} {self.code}"

    def reply(self) -> Reply:
        message = {"message": self.code}
        return json_reply(message, self.status, close=self.close, headers=self.headers)
