"""Spark jobs as consumers and producers: ``nsq`` as a format, and ``drain`` for batch jobs.

::

    from nsqpy.spark import drain, register

    register(spark)
    with drain(spark, topic="orders", channel="lake", nsqd="127.0.0.1:4151") as df:
        df.write.mode("append").parquet("/lake/orders")

Executors need the standard library, PySpark and PyArrow only. docs/spark.md says what is exactly
once, and what is not.
"""

from typing import TYPE_CHECKING

from nsqpy.spark.drain import AlreadyDrained, LeaseLost, UnreadWarning, commit
from nsqpy.spark.drain import Drain as drain
from nsqpy.spark.source import NSQDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["AlreadyDrained", "LeaseLost", "UnreadWarning", "commit", "drain", "register"]


def register(spark: "SparkSession") -> None:
    """Make the format ``nsq`` known to this session.

    Not needed where the module ``pyspark_nsq`` can be imported by the workers' Python.
    """
    spark.dataSource.register(NSQDataSource)
