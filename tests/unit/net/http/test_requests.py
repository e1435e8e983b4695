"""The parameters of a query string. Bodies need a socket: tests/integration/test_http.py."""

import pytest

from nsqpy.net.http import HTTPError, parse_query


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
def test_the_first_value_counts(query: str, found: dict[str, str]) -> None:
    assert parse_query(query) == found


@pytest.mark.parametrize("query", ["a=%zz", "a=%", "a=%1", "a;b", "topic=a&x=;"])
def test_a_bad_one_is_refused(query: str) -> None:
    with pytest.raises(HTTPError, match="400 INVALID_REQUEST"):
        parse_query(query)
