"""From method and path to a route, or to the reply where there is none."""

import pytest

from nsqpy.net.http import OK, Reply, Request, Route, Router
from tests.unit.net.http.reply_head import head


async def handler(request: Request) -> Reply:
    return OK


ROUTE = Route(handler)
ROUTER = Router(
    {
        "/ping": {"GET": ROUTE},
        "/topic/create": {"POST": ROUTE},
        "/config/*": {"GET": ROUTE, "PUT": ROUTE},
        "/debug/pprof/": {"GET": ROUTE},
    }
)


@pytest.mark.parametrize(
    ("path", "methods", "segment"),
    [
        ("/ping", {"GET"}, ""),
        ("/p%69ng", {"GET"}, ""),
        ("/config/log_level", {"GET", "PUT"}, "log_level"),
        ("/config/a%2Fb", set(), "b"),
        ("/config/", set(), ""),
        ("/config/a/b", set(), "b"),
        ("/debug/pprof/", {"GET"}, ""),
        ("/", set(), ""),
        ("", set(), ""),
    ],
)
def test_finds_paths(path: str, methods: set[str], segment: str) -> None:
    found, rest = ROUTER.find(path)
    assert set(found) == methods
    assert not methods or rest == segment


@pytest.mark.parametrize(
    ("method", "path", "location"),
    [
        ("GET", "/ping/", "/ping"),
        ("GET", "//ping", "/ping"),
        ("GET", "/PING", "/ping"),
        ("GET", "/x/../ping", "/ping"),
        ("GET", "/debug/pprof", "/debug/pprof/"),
        ("GET", "/CONFIG/log_level/", "/config/log_level"),
        ("POST", "/Topic//create/", "/topic/create"),
        ("PUT", "/config/a/", "/config/a"),
    ],
)
def test_leads_to_the_path_that_was_meant(method: str, path: str, location: str) -> None:
    reply = ROUTER.refusal(method, path, "topic=a")
    assert reply.status == (301 if method == "GET" else 307)
    assert f"Location: {location}?topic=a" in head(reply)
    assert f"Location: {location}" in head(ROUTER.refusal(method, path, ""))


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", "/"), ("GET", "/nope"), ("GET", "//evil.example/ping"), ("GET", "")),
        *(("POST", "/ping/"), ("HEAD", "/PING"), ("OPTIONS", "/nope"), ("GET", "/config/")),
    ],
)
def test_does_not_know_the_path(method: str, path: str) -> None:
    reply = ROUTER.refusal(method, path, "")
    assert (reply.status, reply.body) == (404, b'{"message":"NOT_FOUND"}')


@pytest.mark.parametrize("method", ["HEAD", "POST", "BREW"])
def test_names_the_methods_it_has(method: str) -> None:
    reply = ROUTER.refusal(method, "/ping", "")
    assert reply.body == b'{"message":"METHOD_NOT_ALLOWED"}'
    assert head(reply) == [
        "HTTP/1.1 405 Method Not Allowed",
        "Allow: GET, OPTIONS",
        "Content-Length: 32",
        "Content-Type: application/json; charset=utf-8",
        "X-Nsq-Content-Type: nsq; version=1.0",
    ]


def test_answers_options() -> None:
    assert head(ROUTER.refusal("OPTIONS", "/config/a", "")) == [
        *("HTTP/1.1 200 OK", "Allow: GET, OPTIONS, PUT", "Content-Length: 0"),
    ]
