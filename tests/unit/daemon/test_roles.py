"""Each role against each command of the TCP port, as one table."""

import pytest

from nsqpy.daemon.auth import Gatekeeper
from nsqpy.tokens import Role, hash_token, parse_tokens
from tests.unit.core.node import Client, Node
from tests.unit.core.test_auth import auth
from tests.unit.core.test_session import identify, put

# Callers: a token of each role on the topic "own" alone, one of each on every topic, and none.
CALLERS = [*Role, *(f"{role}.all" for role in Role), "nobody"]
EVERYBODY = set(CALLERS)
PUBLISHERS = {"publish", "publish.all", "admin", "admin.all"}
CONSUMERS = {"consume", "consume.all", "admin", "admin.all"}
SUB = b"SUB own c\n"

# Command, with the topic "own"; who may use it; who may with the topic "other".
TABLE = [
    (identify(), EVERYBODY, EVERYBODY),
    (b"NOP\n", EVERYBODY, EVERYBODY),
    (put("PUB own", b"a"), PUBLISHERS, {"publish.all", "admin.all"}),
    (put("MPUB own", b"a", b"b"), PUBLISHERS, {"publish.all", "admin.all"}),
    (put("DPUB own 5", b"a"), PUBLISHERS, {"publish.all", "admin.all"}),
    (SUB, CONSUMERS, {"consume.all", "admin.all"}),
    # These need a subscription, so whoever may not subscribe does not get that far.
    (SUB + b"RDY 1\n", CONSUMERS, {"consume.all", "admin.all"}),
    (SUB + b"CLS\n", CONSUMERS, {"consume.all", "admin.all"}),
    (SUB + b"FIN 0123456789abcdef\n", CONSUMERS, {"consume.all", "admin.all"}),
    (SUB + b"REQ 0123456789abcdef 0\n", CONSUMERS, {"consume.all", "admin.all"}),
    (SUB + b"TOUCH 0123456789abcdef\n", CONSUMERS, {"consume.all", "admin.all"}),
]


@pytest.fixture
def node() -> Node:
    node = Node()
    lines = [f"{role} {hash_token(role.encode())} {role} own" for role in Role]
    lines += [f"{role}.all {hash_token(f'{role}.all'.encode())} {role} >" for role in Role]
    node.broker.authenticator = Gatekeeper(node.clock, parse_tokens("\n".join(lines)))
    return node


@pytest.mark.parametrize(
    ("command", "own", "other"), TABLE, ids=[repr(row[0][:22]) for row in TABLE]
)
@pytest.mark.parametrize("caller", CALLERS)
def test_who_may_use_it(
    node: Node, caller: str, command: bytes, own: set[str], other: set[str]
) -> None:
    for topic, allowed in ((b"own", own), (b"other", other)):
        client = Client(node)
        if caller != "nobody":
            client.send(auth(caller.encode()))
            assert len(client.take()) == 1
        client.send(command.replace(b"own", topic))
        node.settle()
        replies = client.take()
        is_refused = client.session.finished
        assert is_refused is (caller not in allowed), replies
        if is_refused:
            (error,) = replies
            assert isinstance(error, bytes)
            code = b"E_AUTH_FIRST " if caller == "nobody" else b"E_UNAUTHORIZED "
            assert error.startswith(code)
            assert not node.broker.topics
        else:
            for name in list(node.broker.topics):
                node.broker.delete_topic(name)


def test_a_token_that_changed_is_not_good_any_more(node: Node) -> None:
    gatekeeper = node.broker.authenticator
    assert isinstance(gatekeeper, Gatekeeper)
    client = Client(node)
    client.send(auth(b"publish"))
    assert gatekeeper.still_grants(client.session.grant)
    assert gatekeeper.still_grants(None)
    gatekeeper.book = parse_tokens(f"publish {hash_token(b'publish')} consume own")
    assert not gatekeeper.still_grants(client.session.grant)
