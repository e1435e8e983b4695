"""The token file."""

import pytest

from nsqpy.tokens import Role, TokenFileError, hash_token, make_token, parse_tokens, token_line

HASH = hash_token(b"secret")
OTHER = hash_token(b"other")


def test_a_token_is_found_by_its_secret() -> None:
    book = parse_tokens(f"# remark\n\n  billing {HASH} publish,consume orders.*,invoices\n")
    token = book.find(b"secret")
    assert token is not None
    assert token.name == "billing"
    assert token.roles == {Role.PUBLISH, Role.CONSUME}
    assert token.patterns == ("orders.*", "invoices")
    assert book.find(b"Secret") is None
    assert book.find(b"") is None
    assert len(book) == 1


def test_a_line_reads_as_it_was_written() -> None:
    token = make_token("ops", HASH, ["admin", "observe"], [">"])
    assert parse_tokens(token_line(token)).find(b"secret") == token


def test_a_token_is_held_until_it_changes() -> None:
    token = parse_tokens(f"a {HASH} publish >").find(b"secret")
    assert token is not None
    assert parse_tokens(f"a {HASH} publish >\nb {OTHER} admin >").holds(token)
    for changed in (f"a {HASH} consume >", f"a {HASH} publish x", f"a {OTHER} publish >", ""):
        assert not parse_tokens(changed).holds(token)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("a", "must be: name hash roles topics"),
        (f"a {HASH} publish > more", "must be: name hash roles topics"),
        ("a plainsecret publish >", "the hash of a is not sha256: and 64 hex digits"),
        (f"a {HASH.upper()} publish >", "the hash of a is not sha256: and 64 hex digits"),
        (f"a {HASH} root >", "roles are some of publish,consume,admin,observe"),
        (f"a {HASH} , >", "roles are some of publish,consume,admin,observe"),
        (f"a! {HASH} admin >", "'a!' is no name for a token"),
        (f"a {HASH} admin x$", 'topic pattern "x$" is not valid: it is no topic\'s name'),
        (f"a {HASH} admin >.a", 'topic pattern ">.a" is not valid: ">" must be the last token'),
    ],
)
def test_what_cannot_be_is_refused_by_line(line: str, reason: str) -> None:
    with pytest.raises(TokenFileError) as caught:
        parse_tokens(f"# first\n{line}\n")
    assert str(caught.value) == f"line 2: {reason}"
    assert "plainsecret" not in str(caught.value)


@pytest.mark.parametrize("second", [f"a {OTHER} admin >", f"b {HASH} admin >"])
def test_no_name_and_no_hash_is_there_twice(second: str) -> None:
    with pytest.raises(TokenFileError, match=r"line 2: . is there twice"):
        parse_tokens(f"a {HASH} publish >\n{second}")
