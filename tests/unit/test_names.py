"""Legal names."""

import pytest

from nsqpy.names import decode_name, is_ephemeral, is_valid_name

LEGAL = [
    "a",
    "Z9._-",
    "..",
    "-",
    "x" * 64,
    "t#ephemeral",
    "x" * 54 + "#ephemeral",
]
ILLEGAL = [
    "",
    "x" * 65,
    "x" * 55 + "#ephemeral",
    "#ephemeral",
    "#",
    "t#",
    "t#Ephemeral",
    "t#ephemeral#ephemeral",
    "t#ephemeralx",
    "t\n",
    "\nt",
    "a b",
    "a/b",
    "a:b",
    "a;b",
    "a$",
    "a*",
    "a\0",
    "é",
    "\u0661",  # a digit, but not an ASCII one
]


@pytest.mark.parametrize("name", LEGAL)
def test_legal(name: str) -> None:
    assert is_valid_name(name)
    assert decode_name(name.encode()) == name


@pytest.mark.parametrize("name", ILLEGAL)
def test_illegal(name: str) -> None:
    assert not is_valid_name(name)
    assert decode_name(name.encode()) is None


def test_bytes_that_are_no_text_are_no_name() -> None:
    assert decode_name(b"t\xff") is None


@pytest.mark.parametrize(
    ("name", "ephemeral"), [("t", False), ("t#ephemeral", True), ("ephemeral", False)]
)
def test_ephemeral(name: str, ephemeral: bool) -> None:
    assert is_ephemeral(name) is ephemeral
