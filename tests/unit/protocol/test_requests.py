"""Commands as bytes, against the layouts of the reference."""

from nsqpy.protocol import requests

ID = b"0123456789abcdef"


def test_lines() -> None:
    assert requests.MAGIC == b"  V2"
    assert requests.sub("t", "c#ephemeral") == b"SUB t c#ephemeral\n"
    assert requests.rdy(2500) == b"RDY 2500\n"
    assert requests.fin(ID) == b"FIN 0123456789abcdef\n"
    assert requests.req(ID, 90_000) == b"REQ 0123456789abcdef 90000\n"
    assert requests.touch(ID) == b"TOUCH 0123456789abcdef\n"
    assert requests.CLS == b"CLS\n"
    assert requests.NOP == b"NOP\n"


def test_a_run_of_fins_is_the_fins_joined() -> None:
    ids = [b"%016d" % number for number in range(3)]
    assert requests.fin_many(ids) == b"".join(map(requests.fin, ids))
    assert requests.fin_many(ids[:1]) == requests.fin(ids[0])


def test_identify_is_compact_json_with_its_size() -> None:
    assert requests.identify({"client_id": "a", "snappy": False}) == (
        b'IDENTIFY\n\0\0\0\x20{"client_id":"a","snappy":false}'
    )


def test_publishes_carry_sizes() -> None:
    assert requests.pub("t", b"hello") == b"PUB t\n\0\0\0\x05hello"
    assert requests.dpub("t", 1500, b"hi") == b"DPUB t 1500\n\0\0\0\x02hi"
    assert requests.pub("t", b"") == b"PUB t\n\0\0\0\0"


def test_mpub_counts_itself() -> None:
    assert requests.mpub("t", [b"a", b"bcd"]) == (
        b"MPUB t\n" + b"\0\0\0\x10" + b"\0\0\0\x02" + b"\0\0\0\x01a" + b"\0\0\0\x03bcd"
    )
