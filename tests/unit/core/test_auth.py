"""What a connection must have shown before it may publish or subscribe."""

import json
from collections.abc import Callable

import pytest

from nsqpy.clock import SECOND, Instant
from nsqpy.core.auth import Applicant, Grant, ServerGrant, TokenGrant, parse_server_grant
from nsqpy.core.deadlines import NEVER
from nsqpy.tokens import Role, make_token
from tests.unit.core.node import Client, Node
from tests.unit.core.test_session import identify, put

JOE = {
    "ttl": 60,
    "identity": "joe",
    "identity_url": "http://joe",
    "authorizations": [
        {"permissions": ["subscribe", "publish"], "topic": "^t.*$", "channels": ["^c$", ".*"]}
    ],
}
WELCOME = b'{"identity":"joe","identity_url":"http://joe","permission_count":1}'


def auth(secret: bytes = b"x") -> bytes:
    return b"AUTH\n" + len(secret).to_bytes(4, "big") + secret


class FakeAuthenticator:
    """Answers with what it is given, at once or when told to."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.answer: dict[str, object] | None = JOE
        self.asked: list[Applicant] = []
        self.at_once = True
        self._waiting: list[Callable[[Grant | None, Instant], None]] = []

    def ask(self, applicant: Applicant, on_done: Callable[[Grant | None, Instant], None]) -> None:
        self.asked.append(applicant)
        self._waiting.append(on_done)
        if self.at_once:
            self.answer_all()

    def answer_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for on_done in waiting:
            now = self._node.clock.now()
            grant = None
            if self.answer is not None:
                grant = parse_server_grant(json.dumps(self.answer).encode(), now.monotonic_ns)
            on_done(grant, now)


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def authenticator(node: Node) -> FakeAuthenticator:
    authenticator = FakeAuthenticator(node)
    node.broker.authenticator = authenticator
    return authenticator


@pytest.fixture
def client(node: Node, authenticator: FakeAuthenticator) -> Client:
    return Client(node)


def replies(node: Node, client: Client) -> list[object]:
    node.settle()
    return list(client.take())


def test_identify_says_that_it_is_required(client: Client) -> None:
    client.send(identify(feature_negotiation=True))
    (reply,) = client.take()
    assert isinstance(reply, bytes)
    assert json.loads(reply)["auth_required"] is True


@pytest.mark.parametrize("verb", ["PUB", "MPUB", "DPUB"])
def test_nothing_is_published_before_it(node: Node, client: Client, verb: str) -> None:
    client.send(put(f"{verb} t{' 5' if verb == 'DPUB' else ''}", b"a"))
    assert client.take() == [f"E_AUTH_FIRST AUTH required before {verb}".encode()]
    assert client.session.finished
    assert "t" not in node.broker.topics


def test_nobody_subscribes_before_it(node: Node, client: Client) -> None:
    client.send(b"SUB t c\n")
    assert client.take() == [b"E_AUTH_FIRST AUTH required before SUB"]
    assert "t" not in node.broker.topics


def test_who_is_known_may_do_what_is_granted(
    node: Node, client: Client, authenticator: FakeAuthenticator
) -> None:
    client.send(auth(b"s\xff") + put("PUB t", b"a") + b"SUB t c\n")
    assert replies(node, client) == [WELCOME, b"OK", b"OK"]
    assert authenticator.asked == [Applicant(b"s\xff", "peer")]
    stats = client.session.stats()
    assert (stats.authed, stats.auth_identity, stats.auth_identity_url) == (
        *(True, "joe", "http://joe"),
    )


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (put("PUB other", b"a"), b'E_UNAUTHORIZED AUTH failed for PUB on "other" ""'),
        (put("DPUB x 1", b"a"), b'E_UNAUTHORIZED AUTH failed for DPUB on "x" ""'),
        (put("MPUB x#ephemeral", b"a"), b'E_UNAUTHORIZED AUTH failed for MPUB on "x#ephemeral" ""'),
        (b"SUB other c\n", b'E_UNAUTHORIZED AUTH failed for SUB on "other" "c"'),
    ],
)
def test_what_is_not_granted_is_refused(
    node: Node, client: Client, command: bytes, error: bytes
) -> None:
    client.send(auth() + command)
    assert replies(node, client) == [WELCOME, error]
    assert client.session.finished
    assert not node.broker.topics


def test_a_second_auth_is_refused(client: Client) -> None:
    client.send(auth() + auth())
    assert client.take() == [WELCOME, b"E_INVALID AUTH already set"]


def test_who_is_unknown_is_cut_off(client: Client, authenticator: FakeAuthenticator) -> None:
    authenticator.answer = None
    client.send(auth() + put("PUB t", b"a"))
    assert client.take() == [b"E_AUTH_FAILED AUTH failed"]
    assert client.session.finished


def test_nothing_granted_is_an_error_of_its_own(
    client: Client, authenticator: FakeAuthenticator
) -> None:
    authenticator.answer = {"ttl": 1, "authorizations": []}
    client.send(auth())
    assert client.take() == [b"E_UNAUTHORIZED AUTH no authorizations found"]
    assert client.session.finished


class TestWhileTheServerIsAsked:
    """Commands wait, in their order; the connection does not read on."""

    @pytest.fixture(autouse=True)
    def slow(self, authenticator: FakeAuthenticator) -> None:
        authenticator.at_once = False

    def test_commands_are_held(
        self, node: Node, client: Client, authenticator: FakeAuthenticator
    ) -> None:
        client.send(auth() + put("PUB t", b"a"))
        client.send(put("PUB t", b"b"))
        assert client.session.asking
        assert replies(node, client) == []
        authenticator.answer_all()
        assert replies(node, client) == [WELCOME, b"OK", b"OK"]
        assert node.broker.topics["t"].depth == 2

    def test_the_end_of_input_waits_for_them(
        self, node: Node, client: Client, authenticator: FakeAuthenticator
    ) -> None:
        client.send(auth() + put("PUB t", b"a"))
        client.session.end()
        assert not client.session.finished
        authenticator.answer_all()
        assert replies(node, client) == [WELCOME, b"OK"]
        assert client.session.finished

    def test_heartbeats_go_on(self, client: Client) -> None:
        client.send(auth())
        client.session.heartbeat()
        assert client.take() == [b"_heartbeat_"]

    def test_a_client_that_left_meanwhile_gets_nothing(
        self, node: Node, client: Client, authenticator: FakeAuthenticator
    ) -> None:
        client.send(auth() + put("PUB t", b"a"))
        client.disconnect()
        authenticator.answer_all()
        assert replies(node, client) == []
        assert not node.broker.topics


class TestExpiry:
    """Looked at only when somebody publishes or subscribes."""

    def test_the_server_is_asked_again_with_the_same_secret(
        self, node: Node, client: Client, authenticator: FakeAuthenticator
    ) -> None:
        client.send(auth(b"secret"))
        node.clock.advance(60 * SECOND - 1)
        client.send(put("PUB t", b"a"))
        assert len(authenticator.asked) == 1
        node.clock.advance(1)
        authenticator.at_once = False
        client.send(put("PUB t", b"b") + put("PUB t", b"c"))
        authenticator.answer_all()
        assert replies(node, client) == [WELCOME, b"OK", b"OK", b"OK"]
        assert authenticator.asked == [Applicant(b"secret", "peer")] * 2

    def test_who_is_not_known_any_more_is_cut_off(
        self, node: Node, client: Client, authenticator: FakeAuthenticator
    ) -> None:
        client.send(auth())
        client.take()
        node.clock.advance(60 * SECOND)
        authenticator.answer = None
        client.send(put("PUB t", b"a"))
        assert replies(node, client) == [b"E_AUTH_FAILED AUTH failed"]

    def test_a_subscription_outlives_it(
        self, node: Node, client: Client, authenticator: FakeAuthenticator
    ) -> None:
        client.send(auth() + b"SUB t c\nRDY 1\n")
        client.take()
        node.clock.advance(3600 * SECOND)
        node.publish("t", b"a")
        (message,) = client.take()
        assert not isinstance(message, bytes)
        client.send(b"FIN %s\n" % message.id)
        assert len(authenticator.asked) == 1
        assert node.channel("t", "c").finish_count == 1


def granted(**authorization: object) -> ServerGrant:
    rule = {"permissions": ["subscribe", "publish"], "topic": ".*", "channels": [".*"]}
    answer = JOE | {"authorizations": [rule | authorization]}
    return parse_server_grant(json.dumps(answer).encode(), 0)


class TestServerRules:
    def test_patterns_are_searched_for(self) -> None:
        grant = granted(topic="rde", channels=["^mail$"])
        assert grant.allows(Role.CONSUME, "orders", "mail")
        assert not grant.allows(Role.CONSUME, "orders", "mails")
        assert not grant.allows(Role.CONSUME, "flights", "mail")

    @pytest.mark.parametrize(
        ("channels", "allowed"),
        [([".*"], True), ([], False), (["ch"], False), (["ch", "^$"], True)],
    )
    def test_publishing_is_to_a_channel_without_a_name(
        self, channels: list[str], allowed: bool
    ) -> None:
        assert granted(channels=channels).allows(Role.PUBLISH, "t") is allowed

    def test_one_permission_is_not_the_other(self) -> None:
        assert not granted(permissions=["publish"]).allows(Role.CONSUME, "t", "c")
        assert not granted(permissions=["subscribe"]).allows(Role.PUBLISH, "t")

    @pytest.mark.parametrize(
        ("pattern", "found", "not_found"),
        [
            ("(?i)ORD", "orders", "flights"),
            (r"^orders\z", "orders", "orders.eu"),
            ("^orders$", "orders", "orders.eu"),
            (r"^\Qa.b\E$", "a.b", "axb"),
            ("^[[:alpha:]]+$", "orders", "orders7"),
            (r"^\pL+$", "orders", "orders7"),
            (r"^(?P<name>\w+)\.eu$", "orders.eu", "orders.us"),
            ("(?U)^a+?$", "aa", "b"),
            ("", "anything", None),
        ],
    )
    def test_the_syntax_is_that_of_re2(
        self, pattern: str, found: str, not_found: str | None
    ) -> None:
        grant = granted(topic=pattern)
        assert grant.allows(Role.PUBLISH, found)
        assert not_found is None or not grant.allows(Role.PUBLISH, not_found)

    @pytest.mark.parametrize(
        "pattern",
        [
            *(
                r"(a)\1",
                "(?=a)",
                "(?<!a)b",
                "(?>a)",
                r"a\Z",
                "(?#remark)a",
                "(?x) a",
                "a**",
                "a{1001}",
            ),
            *(r"\pL{100}", "(((a{10}){10}){10}){10}", "a" * 5000),
        ],
    )
    def test_what_re2_cannot_or_should_not_run_is_refused(self, pattern: str) -> None:
        with pytest.raises(ValueError, match=r"unable to compile|more than 4096 characters"):
            granted(topic=pattern)

    @pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "^(.*a){25}$", "^(a|aa)+$"])
    def test_no_pattern_takes_for_ever(self, pattern: str) -> None:
        # Python's ``re`` would be at it for longer than anybody lives.
        assert not granted(topic=pattern).allows(Role.PUBLISH, "a" * 63 + "b")

    def test_how_many_patterns_there_may_be(self) -> None:
        repeated = [".*"] * 5000
        assert granted(channels=[*repeated, "^$"]).allows(Role.PUBLISH, "t")
        assert granted(channels=[f"^{number}$" for number in range(999)]).permission_count == 1
        with pytest.raises(ValueError, match="more than 1000 patterns"):
            granted(channels=[f"^{number}$" for number in range(1000)])

    def test_decisions_are_kept_but_not_for_ever(self) -> None:
        grant = granted(topic="^7")
        for round_trip in range(2):
            for number in range(3000):
                assert grant.allows(Role.PUBLISH, f"{number}") == str(number).startswith("7")
            assert len(grant._decisions) <= 1000, round_trip

    def test_null_and_absent_are_nothing(self) -> None:
        assert parse_server_grant(b'{"ttl":1,"authorizations":null}', 0).permission_count == 0
        assert parse_server_grant(b'{"ttl":1}', 5).expires_ns == 5 + SECOND

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"[]",
            b"\xff",
            b"[" * 100_000,
            b'{"ttl":0}',
            b'{"ttl":-1}',
            b'{"ttl":1.5}',
            b'{"ttl":true}',
            b'{"ttl":"60"}',
            b'{"authorizations":[]}',
            b'{"ttl":1,"identity":5}',
            b'{"ttl":1,"authorizations":{}}',
            b'{"ttl":1,"authorizations":[7]}',
            b'{"ttl":1,"authorizations":[{"permissions":["admin"],"topic":"t","channels":[]}]}',
            b'{"ttl":1,"authorizations":[{"permissions":[[]],"topic":"t","channels":[]}]}',
            b'{"ttl":1,"authorizations":[{"permissions":[],"topic":"(","channels":[]}]}',
            b'{"ttl":1,"authorizations":[{"permissions":[],"topic":"t","channels":["("]}]}',
            b'{"ttl":1,"authorizations":[{"permissions":[],"topic":"\\ud800","channels":[]}]}',
            b'{"ttl":1,"authorizations":[{"permissions":[],"topic":"t","channels":[7]}]}',
        ],
    )
    def test_what_is_no_answer(self, body: bytes) -> None:
        with pytest.raises(ValueError, match=r"."):
            parse_server_grant(body, 0)


def token(*roles: str, topics: str = "orders.*") -> TokenGrant:
    return TokenGrant(make_token("me", "sha256:" + "0" * 64, list(roles), topics.split(",")))


class TestTokens:
    @pytest.mark.parametrize(
        ("role", "allowed"),
        [
            ("publish", {Role.PUBLISH, Role.OBSERVE}),
            ("consume", {Role.CONSUME, Role.OBSERVE}),
            ("observe", {Role.OBSERVE}),
            ("admin", set(Role)),
        ],
    )
    def test_what_a_role_allows(self, role: str, allowed: set[Role]) -> None:
        grant = token(role)
        assert {asked for asked in Role if grant.allows(asked, "orders.eu", "c")} == allowed
        assert not any(grant.allows(asked, "flights", "c") for asked in Role)

    def test_it_does_not_expire(self) -> None:
        grant = token("publish", topics="orders.*,>")
        assert grant.expires_ns == NEVER
        assert grant.permission_count == 2
        assert grant.everywhere
        assert not token("admin").everywhere
