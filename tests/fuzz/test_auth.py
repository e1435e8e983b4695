"""Any text as a token file, any bytes as an AUTH server's answer: no other errors come out."""

import json

from hypothesis import given
from hypothesis import strategies as st

from nsqpy.core.auth import ServerGrant, parse_server_grant
from nsqpy.tokens import Role, TokenFileError, hash_token, parse_tokens

WORDS = st.sampled_from(
    ["#", "a", "b", hash_token(b"x"), "sha256:", "publish,admin", "admin", ">", "a.*,b", "*", ","]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)
ANSWER = st.fixed_dictionaries(
    {"ttl": st.integers(-1, 10**30) | JSON},
    optional={
        "identity": st.text() | JSON,
        "authorizations": JSON
        | st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "permissions": JSON | st.lists(st.sampled_from(["publish", "subscribe"])),
                    "topic": st.text()
                    | st.from_regex(r"[(\[^$.*+?{}|\\a-z0-9\])]*", fullmatch=True),
                    "channels": JSON | st.lists(st.sampled_from([".*", "^$", "("])),
                },
            ),
            max_size=3,
        ),
    },
)


@given(st.text() | st.lists(st.lists(WORDS).map(" ".join)).map("\n".join))
def test_token_files(text: str) -> None:
    try:
        book = parse_tokens(text)
    except TokenFileError:
        return
    token = book.find(b"x")
    assert token is None or book.holds(token)


@given(st.binary() | ANSWER.map(lambda answer: json.dumps(answer).encode()))
def test_answers(body: bytes) -> None:
    try:
        grant = parse_server_grant(body, 0)
    except ValueError:
        return
    assert isinstance(grant, ServerGrant)
    assert grant.expires_ns > 0
    for role in Role:
        for channel in ("", "c"):
            assert grant.allows(role, "t", channel) in (True, False)
