"""The exception tree and the wire codes. Fields first; the text is made in ``__str__``."""

from enum import StrEnum
from typing import Self

__all__ = [
    "ConfigError",
    "ConnectionClosed",
    "CorruptionError",
    "ErrorCode",
    "LocalProtocolError",
    "NSQError",
    "ProtocolError",
    "ServerError",
    "StorageError",
    "TransformError",
]


class ErrorCode(StrEnum):
    """First word of an error frame. Source: Errors in docs/protocol.md."""

    BAD_PROTOCOL = "E_BAD_PROTOCOL"
    INVALID = "E_INVALID"
    BAD_TOPIC = "E_BAD_TOPIC"
    BAD_CHANNEL = "E_BAD_CHANNEL"
    BAD_BODY = "E_BAD_BODY"
    BAD_MESSAGE = "E_BAD_MESSAGE"
    PUB_FAILED = "E_PUB_FAILED"
    DPUB_FAILED = "E_DPUB_FAILED"
    MPUB_FAILED = "E_MPUB_FAILED"
    SUB_FAILED = "E_SUB_FAILED"
    FIN_FAILED = "E_FIN_FAILED"
    REQ_FAILED = "E_REQ_FAILED"
    TOUCH_FAILED = "E_TOUCH_FAILED"
    IDENTIFY_FAILED = "E_IDENTIFY_FAILED"
    AUTH_DISABLED = "E_AUTH_DISABLED"
    AUTH_FAILED = "E_AUTH_FAILED"
    AUTH_FIRST = "E_AUTH_FIRST"
    UNAUTHORIZED = "E_UNAUTHORIZED"


class NSQError(Exception):
    """Root of everything this package raises on purpose."""


class ProtocolError(NSQError):
    """A peer's fault, as the server reports it.

    ``fatal`` tells whether the connection is closed after the error frame: only failed
    FIN, REQ and TOUCH leave it open.
    """

    def __init__(self, code: ErrorCode, reason: str, *, fatal: bool = True) -> None:
        super().__init__(code, reason, fatal)
        self.code = code
        self.reason = reason
        self.fatal = fatal

    def __str__(self) -> str:
        return f"{self.code} {self.reason}" if self.reason else str(self.code)


class LocalProtocolError(NSQError):
    """The caller of the client library asked for something the protocol does not allow."""


class ServerError(NSQError):
    """An error frame from nsqd, such as ``E_BAD_TOPIC PUB topic name "x$" is not valid``."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.code} {self.reason}" if self.reason else self.code


class ConnectionClosed(NSQError):
    """The connection went away before the answer came."""


class TransformError(NSQError):
    """Bytes that are no TLS, deflate or snappy stream; ``layer`` says which they should be."""

    def __init__(self, layer: str, reason: str) -> None:
        super().__init__(layer, reason)
        self.layer = layer
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.layer}: {self.reason}"


class StorageError(NSQError):
    """The file system refused; what was to be stored is not stored."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    @classmethod
    def of(cls, path: str, error: OSError) -> Self:
        """What the system said about ``path``."""
        return cls(path, error.strerror or str(error))

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class CorruptionError(NSQError):
    """Bytes on disk are not what was written there."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(path, offset, reason)
        self.path = path
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path} at byte {self.offset}: {self.reason}"


class ConfigError(NSQError):
    """A setting that cannot be used, named as the user wrote it."""

    def __init__(self, option: str, value: object, reason: str) -> None:
        super().__init__(option, value, reason)
        self.option = option
        self.value = value
        self.reason = reason

    def __str__(self) -> str:
        return self.reason
