import pytest

from nsqpy.gojson import JSON, go_json, go_number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None]}, '{"b":1,"a":[true,null]}'),
        ("<a>&\u2028\u2029", r'"\u003ca\u003e\u0026\u2028\u2029"'),
        ("é\U0001f600\x7f", '"é\U0001f600\x7f"'),
        ('"\\\n\x01', r'"\"\\\n\u0001"'),
        ("a\udcffb", r'"a\ufffdb"'),
        ([], "[]"),
        (0.99, "0.99"),
    ],
)
def test_json_is_what_go_writes(value: JSON, text: str) -> None:
    assert go_json(value) == text.encode()


def test_what_json_cannot_say_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        go_json(float("nan"))


@pytest.mark.parametrize(("value", "text"), [(1.0, "1"), (206850186.0, "206850186"), (0.5, "0.5")])
def test_a_whole_number_has_no_fraction(value: float, text: str) -> None:
    assert go_json(go_number(value)) == text.encode()
