"""What the sink takes, and how rows become calls to a node."""

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from nsqpy.errors import ConfigError
from nsqpy.spark.options import WriteOptions
from nsqpy.spark.sink import RowError, SinkColumns, _fitting, _messages

OPTIONS = WriteOptions.of({"nsqdHttpAddresses": "one:4151", "topic": "orders"})
NO_TOPIC = WriteOptions.of({"nsqdHttpAddresses": "one:4151"})


def schema(**columns: str) -> StructType:
    kinds = {"string": StringType, "binary": BinaryType, "int": IntegerType}
    return StructType([StructField(name, kinds[kind]()) for name, kind in columns.items()])


def test_body_may_be_called_value_and_be_text() -> None:
    assert SinkColumns.of(schema(value="string"), OPTIONS, False).body == "value"
    columns = SinkColumns.of(schema(topic="string", body="binary", defer_ms="int"), NO_TOPIC, False)
    assert columns == SinkColumns("body", "topic", "defer_ms")


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ({"id": "string"}, OPTIONS, "needs a column body or value"),
        ({"body": "string", "value": "string"}, OPTIONS, "one of them"),
        ({"body": "int"}, OPTIONS, "column body cannot be int"),
        ({"body": "string", "defer_ms": "string"}, OPTIONS, "column defer_ms cannot be string"),
        ({"body": "string", "attempts": "int"}, OPTIONS, "column attempts: leave it out"),
        ({"body": "string"}, NO_TOPIC, "option topic is required"),
    ],
)
def test_a_dataframe_that_cannot_be_published_is_refused(
    columns: dict[str, str], options: WriteOptions, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        SinkColumns.of(schema(**columns), options, False)


def test_overwriting_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot overwrite"):
        SinkColumns.of(schema(body="string"), OPTIONS, True)


def grouped(**columns: object) -> dict[tuple[str, int], list[bytes]]:
    batch = pa.RecordBatch.from_pydict(columns)
    names = batch.schema.names
    where = SinkColumns(
        "body", "topic" if "topic" in names else None, "defer_ms" if "defer_ms" in names else None
    )
    return {(topic, delay): bodies for topic, bodies, delay in _messages(batch, where, "orders")}


def test_rows_are_grouped_by_topic_and_delay() -> None:
    assert grouped(body=["a", "b"]) == {("orders", 0): [b"a", b"b"]}
    assert grouped(
        body=[b"a", b"b", b"c", b"d"],
        topic=["x", None, "x", "x"],
        defer_ms=[None, 0, 0, 500],
    ) == {("x", 0): [b"a", b"c"], ("orders", 0): [b"b"], ("x", 500): [b"d"]}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"body": ["a", None]}, "1 rows have no body"),
        ({"body": ["a", ""]}, "empty body"),
        ({"body": ["a"], "topic": ["a b"]}, "'a b' is not a valid topic name"),
        ({"body": ["a"], "defer_ms": [-1]}, "defer_ms is -1"),
    ],
)
def test_a_row_that_no_node_takes_is_named(columns: dict[str, object], said: str) -> None:
    with pytest.raises(RowError, match=said):
        grouped(**columns)


def test_a_call_holds_what_the_node_takes() -> None:
    bodies = [b"x" * 100] * 10
    assert _fitting(bodies, 0, 100, 4 + 3 * 104) == 3
    assert _fitting(bodies, 8, 100, 4 + 3 * 104) == 10
    assert _fitting(bodies, 0, 100, 50) == 1
    with pytest.raises(RowError, match="100 bytes; the node takes 99"):
        _fitting(bodies, 0, 99, 1000)
