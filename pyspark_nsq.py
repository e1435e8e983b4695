"""Where PySpark finds the format ``nsq`` by itself: it imports every module named ``pyspark_*``.

One import and no more: a module of that name which fails to load switches off discovery for all.
"""

from nsqpy.spark.source import NSQDataSource as DefaultSource

__all__ = ["DefaultSource"]
