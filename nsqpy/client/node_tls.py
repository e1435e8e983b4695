"""TLS for calls to the HTTP APIs, where it is not one process that makes them.

Source: docs/spark.md.
"""

import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from nsqpy.net.tls import ClientTLS

__all__ = ["NodeTLS"]

_ENCODING = "latin-1"  # a comment in a PEM may be in any: as bytes, in both directions


@dataclass(frozen=True, slots=True)
class NodeTLS:
    """How to speak TLS with nodes: PEM as text, for it travels to executors, which have no files.

    ``ca`` empty means the system's authorities; without ``verify`` the node may be anybody.
    """

    ca: str = field(default="", repr=False)
    cert: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    verify: bool = True

    @classmethod
    def read(cls, ca_file: str, cert_file: str, key_file: str, *, verify: bool) -> "NodeTLS":
        """Raises ConfigError: a file that cannot be read, is no PEM, or does not fit the others."""
        _context(ca_file, cert_file, key_file, verify)
        return cls(
            ca=_text_of(ca_file) if verify else "",
            cert=_text_of(cert_file),
            key=_text_of(key_file),
            verify=verify,
        )

    def context(self) -> ssl.SSLContext:
        """OpenSSL takes a key from a file only: one that nobody else can read, for a moment."""
        with tempfile.TemporaryDirectory(prefix="nsqpy-tls-") as directory:

            def written(name: str, text: str) -> str:
                path = Path(directory, name)
                path.write_text(text, encoding=_ENCODING)
                return str(path) if text else ""

            return _context(
                written("ca", self.ca),
                written("cert", self.cert),
                written("key", self.key),
                self.verify,
            )


def _text_of(path: str) -> str:
    return Path(path).read_text(encoding=_ENCODING) if path else ""


def _context(ca_file: str, cert_file: str, key_file: str, verify: bool) -> ssl.SSLContext:
    tls = ClientTLS(root_ca_file=ca_file, cert=cert_file, key=key_file, verify=verify)
    return tls.context()
