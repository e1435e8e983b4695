"""How the original prints bytes from the wire into its error texts."""

__all__ = ["go_quote", "text"]

_SHORT = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


def text(raw: bytes) -> str:
    """Bytes as text that ``encode("utf-8", "surrogateescape")`` turns back into the same bytes."""
    return raw.decode("utf-8", "surrogateescape")


def go_quote(raw: bytes) -> str:
    """Go's ``%q``: a double-quoted literal in which nothing unprintable is left.

    Source: Go's strconv.Quote.
    """
    return '"' + "".join(map(_escape, text(raw))) + '"'


def _escape(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    if character.isprintable():
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape's form of a byte that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
