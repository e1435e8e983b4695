"""The batch job that most people would write first: a channel to files. ``nsqpy drain`` runs it."""

import os
import sys
from enum import StrEnum

from pyspark.sql import DataFrame, SparkSession

from nsqpy.spark import register
from nsqpy.spark.drain import Drain

__all__ = ["FileFormat", "drain_to_files", "session"]


class FileFormat(StrEnum):
    """What the files are. JSON is one object a line."""

    PARQUET = "parquet"
    JSON = "json"


def session(master: str, name: str) -> SparkSession:
    """A quiet session that knows the format."""
    # Unset, the workers would run whatever python3 is on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master(master)
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    register(spark)
    return spark


def drain_to_files(job: Drain, path: str, file_format: FileFormat) -> int:
    """Append what the job leases to the files below ``path``; the number of messages.

    A job with an id of its own writes to ``path/drain=id``, which a repeated run overwrites.

    Raises: as ``nsqpy.spark.drain``.
    """
    with job as df:
        if job.keeps_id:
            _write(df, f"{path.rstrip('/')}/drain={job.id}", file_format, "overwrite")
        elif job.messages:
            _write(df, path, file_format, "append")
    return job.messages


def _write(df: DataFrame, path: str, file_format: FileFormat, mode: str) -> None:
    if file_format is FileFormat.JSON:
        # Text as text; what is none would not survive that.
        df = df.selectExpr(
            *(name for name in df.columns if name != "body"),
            "if(is_valid_utf8(cast(body as string)), cast(body as string), null) as body",
            "if(is_valid_utf8(cast(body as string)), null, base64(body)) as body_base64",
        )
    df.write.mode(mode).format(file_format.value).save(path)
