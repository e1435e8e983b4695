"""nsqpy: a persistent message queue that speaks the NSQ protocol.

``Producer`` and ``Consumer`` are loaded on first use, so that a daemon never loads the client.
"""

from typing import TYPE_CHECKING

from nsqpy.version import RELEASE as __version__

if TYPE_CHECKING:
    from nsqpy.client.consumer import Consumer
    from nsqpy.client.message import Message
    from nsqpy.client.producer import Producer

__all__ = ["Consumer", "Message", "Producer", "__version__"]

_LAZY = {
    "Consumer": "nsqpy.client.consumer",
    "Message": "nsqpy.client.message",
    "Producer": "nsqpy.client.producer",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
