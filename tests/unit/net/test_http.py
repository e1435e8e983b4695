"""Routing and encoding, which need no socket. Serving is in tests/integration/test_http.py."""

import pytest

from nsqpy.net.http import (
    EMPTY,
    OK,
    HTTPError,
    Reply,
    Request,
    Route,
    Router,
    json_reply,
    parse_query,
)


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


def head(reply: Reply) -> list[str]:
    """Status line and headers, without the date, sorted but for the first."""
    lines = reply.encode(http10=False, keep_alive=True).decode().partition("\r\n\r\n")[0]
    first, *rest = lines.split("\r\n")
    return [first, *sorted(line for line in rest if not line.startswith("Date: "))]


class TestQuery:
    @pytest.mark.parametrize(
        ("query", "found"),
        [
            ("", {}),
            ("&&", {}),
            ("topic=a&topic=b", {"topic": "a"}),
            ("topic=&binary", {"topic": "", "binary": ""}),
            ("topic=a%23ephemeral", {"topic": "a#ephemeral"}),
            ("a+b=c+d%2B&e=f=g", {"a b": "c d+", "e": "f=g"}),
            ("topic=%ff", {"topic": "\udcff"}),
        ],
    )
    def test_the_first_value_counts(self, query: str, found: dict[str, str]) -> None:
        assert parse_query(query) == found

    @pytest.mark.parametrize("query", ["a=%zz", "a=%", "a=%1", "a;b", "topic=a&x=;"])
    def test_a_bad_one_is_refused(self, query: str) -> None:
        with pytest.raises(HTTPError, match="400 INVALID_REQUEST"):
            parse_query(query)


class TestRouter:
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
    def test_finds_paths(self, path: str, methods: set[str], segment: str) -> None:
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
    def test_leads_to_the_path_that_was_meant(self, method: str, path: str, location: str) -> None:
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
    def test_does_not_know_the_path(self, method: str, path: str) -> None:
        reply = ROUTER.refusal(method, path, "")
        assert (reply.status, reply.body) == (404, b'{"message":"NOT_FOUND"}')

    @pytest.mark.parametrize("method", ["HEAD", "POST", "BREW"])
    def test_names_the_methods_it_has(self, method: str) -> None:
        reply = ROUTER.refusal(method, "/ping", "")
        assert reply.body == b'{"message":"METHOD_NOT_ALLOWED"}'
        assert head(reply) == [
            "HTTP/1.1 405 Method Not Allowed",
            "Allow: GET, OPTIONS",
            "Content-Length: 32",
            "Content-Type: application/json; charset=utf-8",
            "X-Nsq-Content-Type: nsq; version=1.0",
        ]

    def test_answers_options(self) -> None:
        assert head(ROUTER.refusal("OPTIONS", "/config/a", "")) == [
            *("HTTP/1.1 200 OK", "Allow: GET, OPTIONS, PUT", "Content-Length: 0"),
        ]


class TestReply:
    def test_text_has_type_and_length(self) -> None:
        assert head(OK) == [
            "HTTP/1.1 200 OK",
            "Content-Length: 2",
            "Content-Type: text/plain; charset=utf-8",
            "X-Nsq-Content-Type: nsq; version=1.0",
        ]

    def test_empty_has_no_type(self) -> None:
        assert head(EMPTY) == [
            *("HTTP/1.1 200 OK", "Content-Length: 0", "X-Nsq-Content-Type: nsq; version=1.0"),
        ]

    def test_json_has_no_newline(self) -> None:
        assert json_reply({"a": [1]}).body == b'{"a":[1]}'

    @pytest.mark.parametrize(
        ("http10", "keep_alive", "start", "connection"),
        [
            (False, True, b"HTTP/1.1 200 OK\r\n", None),
            (False, False, b"HTTP/1.1 200 OK\r\n", b"\r\nConnection: close\r\n\r\nOK"),
            (True, True, b"HTTP/1.0 200 OK\r\n", b"\r\nConnection: keep-alive\r\n\r\nOK"),
            (True, False, b"HTTP/1.0 200 OK\r\n", None),
        ],
    )
    def test_says_what_becomes_of_the_connection_if_the_version_does_not(
        self, http10: bool, keep_alive: bool, start: bytes, connection: bytes | None
    ) -> None:
        data = OK.encode(http10=http10, keep_alive=keep_alive)
        assert data.startswith(start)
        assert data.endswith(connection or b" GMT\r\n\r\nOK")
        assert (b"Connection" in data) == (connection is not None)

    def test_a_head_has_the_length_but_no_body(self) -> None:
        data = OK.encode(http10=False, keep_alive=True, with_body=False)
        assert b"Content-Length: 2\r\n" in data
        assert data.endswith(b"\r\n\r\n")
