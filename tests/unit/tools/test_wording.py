import pytest

from nsqpy.tools.wording import counted


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "message", "0 messages"),
        (1, "message", "1 message"),
        (2, "file", "2 files"),
        (1, "damaged stretch", "1 damaged stretch"),
        (2, "damaged stretch", "2 damaged stretches"),
    ],
)
def test_counted(count: int, noun: str, text: str) -> None:
    assert counted(count, noun) == text
