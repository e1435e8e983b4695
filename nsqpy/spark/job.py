"""The batch job that most people would write first: a channel to files. ``nsqpy drain`` runs it."""

import os
import sys
from enum import StrEnum

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from nsqpy.errors import NSQError
from nsqpy.spark import register
from nsqpy.spark.drain import Drain

__all__ = ["FileFormat", "JobFailed", "drain_to_files", "session"]

_REASON_MAX = 500
_JSON_TIMESTAMP = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"  # Spark's own has milliseconds


class JobFailed(NSQError):
    """Spark did not do it; ``reason`` is what it says first."""

    def __init__(self, what: str, error: Exception) -> None:
        super().__init__(what, error)
        self.what = what
        # A name of the call comes before the Java exception, and its stack behind it.
        lines = [line.lstrip(": ") for line in str(error).splitlines()] or [""]
        self.reason = next((line for line in lines[1:2] if "Exception" in line), lines[0])

    def __str__(self) -> str:
        return f"{self.what}: {self.reason[:_REASON_MAX]}"


class FileFormat(StrEnum):
    """What the files are. JSON is one object a line."""

    PARQUET = "parquet"
    JSON = "json"


def session(master: str, name: str) -> SparkSession:
    """A quiet session that knows the format. Raises JobFailed."""
    # Unset, the workers would run whatever python3 is on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master(master)
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
    )
    try:
        spark = builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise JobFailed("Spark did not start; it needs Java 17 or later", error) from error
    register(spark)
    return spark


def drain_to_files(job: Drain, path: str, file_format: FileFormat) -> int:
    """Append what the job leases to the files below ``path``; the number of messages.

    A job with an id of its own writes to ``path/drain=id``, which a repeated run overwrites.

    Raises:
        JobFailed: the messages are back in the queue, or wait for a run of the same id.
        NSQError: as ``nsqpy.spark.drain``.
    """
    try:
        with job as df:
            if job.keeps_id:
                _write(df, f"{path.rstrip('/')}/drain={job.id}", file_format, "overwrite")
            elif job.messages:
                _write(df, path, file_format, "append")
    except (PySparkException, Py4JError) as error:
        kept = f"wait for a run of --id={job.id}" if job.keeps_id else "are back in the queue"
        raise JobFailed(f"nothing is acknowledged and the messages {kept}", error) from error
    return job.messages


def _write(df: DataFrame, path: str, file_format: FileFormat, mode: str) -> None:
    if file_format is FileFormat.JSON:
        # Text as text; what is none would not survive that.
        df = df.selectExpr(
            *(name for name in df.columns if name != "body"),
            "if(is_valid_utf8(cast(body as string)), cast(body as string), null) as body",
            "if(is_valid_utf8(cast(body as string)), null, base64(body)) as body_base64",
        )
    writer = df.write.mode(mode).format(file_format.value)
    if file_format is FileFormat.JSON:
        writer = writer.option("timestampFormat", _JSON_TIMESTAMP)
    writer.save(path)
