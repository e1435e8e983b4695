"""The conversations of the ``.txt`` files beside this one, whole and in pieces."""

from pathlib import Path

import pytest

from tests.golden.conversation import Conversation
from tests.golden.transcript import Transcript, encode, read_transcripts

TRANSCRIPTS = read_transcripts(Path(__file__).parent)


@pytest.mark.parametrize(
    ("piece_bytes", "trailing"),
    [(0, False), (1, False), (7, False), (0, True), (1, True)],
    ids=["whole", "bytes", "sevens", "trailing", "trailing-bytes"],
)
@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda entry: entry.where)
def test_transcript(
    transcript: Transcript, tmp_path: Path, piece_bytes: int, trailing: bool
) -> None:
    Conversation(transcript, tmp_path, piece_bytes=piece_bytes, trailing=trailing).play()


@pytest.mark.parametrize(
    ("template", "data"),
    [
        (r"NOP\n", b"NOP\n"),
        (r"\r\t\\n\xff", b"\r\t\\n\xff"),
        ("{5}{-1}", b"\0\0\0\5\xff\xff\xff\xff"),
        ("{x*3}é{}", b"xxx\xc3\xa9{}"),
        ("[[{2}[[a]][[bc]]]]", b"\0\0\0\x0f\0\0\0\2\0\0\0\1a\0\0\0\2bc"),
        ("FIN $a", b"FIN 0123456789abcdef"),
    ],
)
def test_a_template_stands_for_bytes(template: str, data: bytes) -> None:
    assert encode(template, {"a": b"0123456789abcdef"}) == data
