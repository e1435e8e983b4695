"""Who may call what over HTTP, when there is a token file.

``NEEDS`` says for each method of each path what a token must be good for. What is not in it needs
an administrator of the whole node, so that a new endpoint is closed until it is thought about.
A caller shows its token as ``Authorization: Bearer``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from nsqpy.core.auth import TokenGrant
from nsqpy.daemon.auth import Gatekeeper
from nsqpy.net.http import Handler, HTTPError, Reply, Request, Route
from nsqpy.tokens import Role

__all__ = ["NEEDS", "Access", "Need", "Scope"]


class Scope(Enum):
    """What of the node a call concerns."""

    OPEN = "open"  # nothing that is secret: no token
    OWN = "own"  # whatever the token's topics are: any token, and the reply is cut to them
    TOPIC = "topic"  # the topic named in the query
    NODE = "node"  # all of it: the token's topics must be ">"


@dataclass(frozen=True, slots=True)
class Need:
    """What a token must hold to call an endpoint."""

    scope: Scope
    role: Role = Role.OBSERVE


_OPEN = Need(Scope.OPEN)
_OWN = Need(Scope.OWN)
_PUBLISH = Need(Scope.TOPIC, Role.PUBLISH)
_ADMIN = Need(Scope.TOPIC, Role.ADMIN)
_NODE = Need(Scope.NODE, Role.ADMIN)

NEEDS: Mapping[tuple[str, str], Need] = {
    ("GET", "/ping"): _OPEN,
    ("GET", "/healthz"): _OPEN,
    ("GET", "/healthz/*"): _OPEN,
    ("GET", "/info"): _OWN,
    ("GET", "/stats"): _OWN,
    ("GET", "/metrics"): _OWN,
    ("POST", "/pub"): _PUBLISH,
    ("POST", "/mpub"): _PUBLISH,
    ("POST", "/topic/create"): _ADMIN,
    ("POST", "/topic/delete"): _ADMIN,
    ("POST", "/topic/pause"): _ADMIN,
    ("POST", "/topic/unpause"): _ADMIN,
    ("POST", "/topic/empty"): _ADMIN,
    ("POST", "/channel/create"): _ADMIN,
    ("POST", "/channel/delete"): _ADMIN,
    ("POST", "/channel/pause"): _ADMIN,
    ("POST", "/channel/unpause"): _ADMIN,
    ("POST", "/channel/empty"): _ADMIN,
    ("GET", "/channel/config"): Need(Scope.TOPIC),
    ("POST", "/channel/config"): _ADMIN,
    ("POST", "/channel/redrive"): _ADMIN,
    ("GET", "/drain"): _NODE,
    ("POST", "/drain"): _NODE,
    ("POST", "/lease/create"): Need(Scope.TOPIC, Role.CONSUME),
    **dict.fromkeys(
        [
            *(("GET", "/lease/read"), ("POST", "/lease/extend"), ("POST", "/lease/commit")),
            *(("POST", "/lease/release"), ("GET", "/leases")),
        ],
        _OWN,  # a lease says its topic only when it is found: see ``Access.require``
    ),
}


class Access:
    """Puts a check before every handler. Without a token file everything is open."""

    def __init__(self, gatekeeper: Gatekeeper | None) -> None:
        self._gatekeeper = gatekeeper
        self._closed = gatekeeper is not None and gatekeeper.book is not None

    def guard(self, routes: Mapping[str, Mapping[str, Route]]) -> Mapping[str, Mapping[str, Route]]:
        if not self._closed:
            return routes
        return {
            path: {
                method: self._guarded(NEEDS.get((method, path), _NODE), route)
                for method, route in methods.items()
            }
            for path, methods in routes.items()
        }

    def _guarded(self, need: Need, route: Route) -> Route:
        if need.scope is Scope.OPEN:
            return route
        handler = route.handler

        async def check_first(request: Request) -> Reply:
            grant = self._grant(request)
            if grant is None:
                raise _refusal(401, "UNAUTHORIZED", request)
            if not _meets(grant, need, request):
                raise _refusal(403, "FORBIDDEN", request)
            return await handler(request)

        checked: Handler = check_first
        return replace(route, handler=checked)

    def sees(self, request: Request) -> Callable[[str], bool] | None:
        """Which topics the caller may see; None: all."""
        if not self._closed:
            return None
        grant = self._grant(request)
        assert grant is not None, "the handler was reached without a token"
        return None if grant.everywhere else grant.sees

    def require(self, request: Request, role: Role, topic: str) -> None:
        """For a second topic that a call concerns.

        Raises:
            HTTPError: 403 FORBIDDEN.
        """
        if self._closed:
            grant = self._grant(request)
            if grant is None or not grant.allows(role, topic):
                raise HTTPError(403, "FORBIDDEN")

    def _grant(self, request: Request) -> TokenGrant | None:
        scheme, _, secret = request.header("Authorization").partition(" ")
        if self._gatekeeper is None or scheme.lower() != "bearer":
            return None
        return self._gatekeeper.find(secret.strip().encode("utf-8", "surrogateescape"))


def _meets(grant: TokenGrant, need: Need, request: Request) -> bool:
    if need.scope is Scope.OWN:
        return True
    if need.scope is Scope.NODE:
        return grant.everywhere and need.role in grant.token.roles
    topic = request.query.get("topic")
    # Without a topic there is nothing to protect: the handler says what is missing.
    return topic is None or grant.allows(need.role, topic)


def _refusal(status: int, code: str, request: Request) -> HTTPError:
    headers = [("WWW-Authenticate", "Bearer")] if status == 401 else []
    # A body is not read from somebody who may not send it.
    return HTTPError(status, code, close=request.has_body, headers=headers)
