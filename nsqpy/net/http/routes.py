"""From method and path to what answers, and the answer where nothing does."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from posixpath import normpath
from urllib.parse import unquote

from nsqpy.net.http.replies import HTTPError, Reply
from nsqpy.net.http.requests import Request

__all__ = ["ClosedRouter", "Handler", "Route", "Router"]

Handler = Callable[[Request], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Route:
    """What answers one method of one path; ``logged`` is off for what comes by the thousand."""

    handler: Handler
    logged: bool = True


_Methods = Mapping[str, Route]
_NO_METHODS: _Methods = {}


class Router:
    """From method and path to a route, or to the reply for a request that has none."""

    def __init__(self, routes: Mapping[str, _Methods]) -> None:
        self._exact = {path: methods for path, methods in routes.items() if path[-2:] != "/*"}
        self._open = {path[:-1]: methods for path, methods in routes.items() if path[-2:] == "/*"}
        self._by_lower = {path.lower(): path for path in self._exact}
        self._open_by_lower = {prefix.lower(): prefix for prefix in self._open}

    def find(self, path: str) -> tuple[_Methods, str]:
        """What answers ``path``, by method, and its last segment if that was left open."""
        if "%" in path:
            path = unquote(path, errors="surrogateescape")
        if (methods := self._exact.get(path)) is not None:
            return methods, ""
        prefix, segment = _cut(path)
        return self._open.get(prefix, _NO_METHODS) if segment else _NO_METHODS, segment

    def refusal(self, method: str, path: str, query: str) -> Reply:
        """The answer to a request for which ``find`` has no route: 301, 307, 404, 405 or 200."""
        if (clean := self._clean(method, path)) is not None:
            location = f"{clean}?{query}" if query else clean
            return Reply(301 if method == "GET" else 307, headers=[("Location", location)])
        methods, _ = self.find(path)
        if not methods:
            return HTTPError(404, "NOT_FOUND").reply()
        allow = ("Allow", ", ".join(sorted({*methods, "OPTIONS"})))
        if method == "OPTIONS":
            return Reply(200, headers=[allow])
        return HTTPError(405, "METHOD_NOT_ALLOWED", headers=[allow]).reply()

    def _clean(self, method: str, path: str) -> str | None:
        """The path that ``path`` seems to mean, if it has the method; None if it means itself."""
        clean = "/" + normpath(path).lstrip("/")
        for candidate in (clean, clean + "/"):
            known = self._by_lower.get(candidate.lower())
            if known is None:
                prefix, segment = _cut(candidate)
                found = self._open_by_lower.get(prefix.lower()) if segment else None
                known = None if found is None else found + segment
            if known is not None and known != path and method in self.find(known)[0]:
                return known
        return None


class ClosedRouter(Router):
    """Has one answer, whatever is asked."""

    def __init__(self, reply: Reply) -> None:
        super().__init__({})
        self._reply = reply

    def refusal(self, method: str, path: str, query: str) -> Reply:
        return self._reply


def _cut(path: str) -> tuple[str, str]:
    head, slash, segment = path.rpartition("/")
    return head + slash, segment
