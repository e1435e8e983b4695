"""Which bytes a ``Range`` header asks for. Sending them: tests/integration/test_lease_api.py."""

import pytest

from nsqpy.net.http import HTTPError
from nsqpy.net.http.files import parse_range
from tests.unit.net.http.reply_head import head


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("bytes=0-9", (0, 10)),
        (" bytes=90- ", (90, 100)),
        ("bytes=99-1000", (99, 100)),
        ("bytes=-10", (90, 100)),
        ("bytes=-1000", (0, 100)),
        *((nonsense, None) for nonsense in ("", "bytes=-", "bytes=5-4", "bytes=0-1,3-4", "x=0-1")),
    ],
)
def test_a_range_is_cut_to_what_there_is(header: str, found: tuple[int, int] | None) -> None:
    assert parse_range(header, 100) == found


@pytest.mark.parametrize("header", ["bytes=100-", "bytes=100-200", "bytes=-0"])
def test_a_range_beyond_the_end_is_refused_with_the_size(header: str) -> None:
    with pytest.raises(HTTPError, match="416 RANGE_NOT_SATISFIABLE") as caught:
        parse_range(header, 100)
    assert "Content-Range: bytes */100" in head(caught.value.reply())
