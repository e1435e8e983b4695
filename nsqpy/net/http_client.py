"""HTTP from the asking side: one session of aiohttp's, with bounds on time and size."""

import os
from ssl import SSLContext

from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
)
from yarl import URL

from nsqpy.errors import ConnectionClosed

__all__ = ["HTTPClient"]

_REDIRECTS_MAX = 3


class HTTPClient:
    """Asks over connections that are kept. Made and used inside a running event loop.

    Bodies are taken as they are: a small compressed one must not become a large one. ``tls`` is
    how servers on HTTPS prove themselves; None: by the system's authorities.
    """

    def __init__(
        self,
        timeout_s: float,
        headers: dict[str, str],
        *,
        connect_timeout_s: float | None = None,
        tls: SSLContext | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._tls = True if tls is None else tls
        self._session = ClientSession(
            timeout=ClientTimeout(total=timeout_s, sock_connect=connect_timeout_s),
            headers={"Accept-Encoding": "identity"} | headers,
            auto_decompress=False,
            cookie_jar=DummyCookieJar(),
        )

    async def get(self, url: str, max_bytes: int) -> tuple[int, bytes]:
        """The status and the body. ``url`` is sent as it is.

        Raises:
            ConnectionClosed: no answer within the timeout, none in HTTP, or a longer body.
        """
        return await self._ask("GET", url, None, max_bytes)

    async def post_json(self, url: str, body: bytes, max_bytes: int) -> tuple[int, bytes]:
        """As ``get``, with JSON to send."""
        return await self._ask("POST", url, body, max_bytes)

    async def _ask(
        self, method: str, url: str, body: bytes | None, max_bytes: int
    ) -> tuple[int, bytes]:
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            async with self._session.request(
                method,
                URL(url, encoded=True),
                data=body,
                headers=headers,
                max_redirects=_REDIRECTS_MAX,
                ssl=self._tls,
            ) as response:
                parts: list[bytes] = []
                size = 0
                async for part in response.content.iter_any():
                    parts.append(part)
                    size += len(part)
                    if size > max_bytes:
                        raise ConnectionClosed(f"the answer is longer than {max_bytes} bytes")
                return response.status, b"".join(parts)
        except TimeoutError:
            raise ConnectionClosed(f"no answer within {self._timeout_s:g}s") from None
        except (ClientError, OSError, ValueError) as error:
            raise ConnectionClosed(_reason(error)) from error

    async def close(self) -> None:
        await self._session.close()


def _reason(error: Exception) -> str:
    """The system's word for it: aiohttp's own text repeats the address."""
    cause = error.os_error if isinstance(error, ClientConnectorError) else error
    number = cause.errno if isinstance(cause, OSError) else None
    return os.strerror(number) if number is not None and number > 0 else str(cause)
