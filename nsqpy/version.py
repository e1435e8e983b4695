"""Which release this is, and which NSQ release it behaves as."""

__all__ = ["NSQ_VERSION", "RELEASE"]

RELEASE = "0.1.0"

# What clients, tools and dashboards compare against: the original whose behaviour is matched.
NSQ_VERSION = "1.3.0"
