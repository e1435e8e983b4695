"""Topic patterns: what they match, and which are none."""

import random
import re

import pytest

from nsqpy.errors import LocalProtocolError
from nsqpy.patterns import TopicTrie, check_pattern, is_pattern


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("orders", ["orders"], ["orders.eu", "order", "orders#ephemeral"]),
        ("orders.*", ["orders.eu", "orders.us-1", "orders."], ["orders", "orders.eu.paid"]),
        ("orders.>", ["orders.eu", "orders.eu.paid", "orders."], ["orders", "order.eu"]),
        ("*", ["orders", "x#ephemeral"], ["orders.eu"]),
        (">", ["orders", "orders.eu.paid"], []),
        ("*.eu", ["orders.eu", ".eu"], ["eu", "orders.us", "a.b.eu", "orders.eu#ephemeral"]),
        ("*.eu#ephemeral", ["orders.eu#ephemeral"], ["orders.eu"]),
        ("orders.*", ["orders.eu#ephemeral"], []),
        ("*.*", ["a.b", "."], ["a", "a.b.c"]),
        ("a.*.c.>", ["a.b.c.d", "a.x.c.d.e", "a..c.d"], ["a.b.c", "a.b.d.e"]),
    ],
)
def test_what_a_pattern_matches(pattern: str, matching: list[str], others: list[str]) -> None:
    trie = TopicTrie([pattern])
    assert [topic for topic in matching if not trie.matches(topic)] == []
    assert [topic for topic in others if trie.matches(topic)] == []
    assert is_pattern(pattern) == (pattern != "orders")


def test_one_look_tells_every_pattern_that_matches() -> None:
    trie = TopicTrie(["a.b", "a.*", "*.b", "a.>", ">", "*", "b.>", "a.b.>"])
    assert sorted(trie.match("a.b")) == ["*.b", ">", "a.*", "a.>", "a.b"]
    assert trie.match("b") == [">", "*"]
    assert not TopicTrie().matches("a")


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("orders.>.eu", '">" must be the last token'),
        (">.x", '">" must be the last token'),
        ("orders*", '"orders*" mixes a wildcard with text'),
        ("orders.**", '"**" mixes a wildcard with text'),
        ("*#ephemeral", '"*#ephemeral" mixes a wildcard with text'),
        ("a.>#ephemeral", '">#ephemeral" mixes a wildcard with text'),
        ("a#ephemeral.*", "what no topic's name may hold"),
        ("a b.*", "what no topic's name may hold"),
        ("ä.>", "what no topic's name may hold"),
        ("a..*", "a token is empty"),
        ("*.", "a token is empty"),
        ("bad$", "it is no topic's name"),
        ("", "it is no topic's name"),
        ("*." * 40 + "*", "longer than 64"),
    ],
)
def test_what_is_no_pattern(pattern: str, reason: str) -> None:
    with pytest.raises(LocalProtocolError, match=re.escape(reason)):
        check_pattern(pattern)
    with pytest.raises(LocalProtocolError):
        TopicTrie([pattern])


def naive_match(pattern: list[str], topic: list[str]) -> bool:
    if not pattern or not topic:
        return not pattern and not topic
    if pattern == [">"]:
        return True
    return pattern[0] in ("*", topic[0]) and naive_match(pattern[1:], topic[1:])


def test_it_agrees_with_a_naive_matcher() -> None:
    chance = random.Random(4)
    for _ in range(300):
        patterns = {
            ".".join([*chance.choices(["a", "b", "*"], k=chance.randint(0, 4)), last])
            for last in chance.choices(["a", "b", "*", ">"], k=8)
        }
        trie = TopicTrie(patterns)
        for _ in range(10):
            topic = ".".join(chance.choices(["a", "b", "c", ""], k=chance.randint(1, 5)))
            expected = [one for one in patterns if naive_match(one.split("."), topic.split("."))]
            assert sorted(trie.match(topic)) == sorted(expected), (topic, patterns)
