"""TLS: contexts made from files, and a stage of a stream over OpenSSL in memory.

The stage moves bytes only, so one connection may begin in clear and go on encrypted, whatever
it runs over. Source: IDENTIFY in docs/protocol.md, docs/security.md; Python's ``ssl``, memory BIO.
"""

import re
import ssl
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nsqpy.config import TLSVersion
from nsqpy.errors import ConfigError, TransformError

__all__ = ["HANDSHAKE_TIMEOUT_S", "ClientTLS", "ServerTLS", "TLSDetails", "TLSStage"]


HANDSHAKE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class TLSDetails:
    """What a handshake came to, as ``/stats`` shows it.

    ``common_name`` is that of the peer's certificate, if it had to show one and it was good.
    """

    version: str
    cipher_suite: str
    common_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTLS:
    """A server's settings. ``root_ca_file`` empty means the system's authorities."""

    cert: str
    key: str
    root_ca_file: str = ""
    client_certificates: bool = False
    min_version: TLSVersion = TLSVersion.TLS1_2

    def context(self) -> ssl.SSLContext:
        """Read the files.

        Raises:
            ConfigError: a file that cannot be read, is no PEM, or does not fit the others.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.options |= ssl.OP_NO_RENEGOTIATION
        _set_minimum(context, self.min_version)
        _load_certificate(context, self.cert, self.key)
        if self.client_certificates:
            _load_authorities(context, self.root_ca_file, ssl.Purpose.CLIENT_AUTH)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTLS:
    """A client's settings. Without ``verify`` the server may be anybody."""

    cert: str = ""
    key: str = ""
    root_ca_file: str = ""
    verify: bool = True
    min_version: TLSVersion = TLSVersion.TLS1_2

    def context(self) -> ssl.SSLContext:
        """Read the files. Raises: as ``ServerTLS.context``."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _set_minimum(context, self.min_version)
        if self.cert or self.key:
            _load_certificate(context, self.cert, self.key)
        if self.verify:
            _load_authorities(context, self.root_ca_file, ssl.Purpose.SERVER_AUTH)
        else:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _set_minimum(context: ssl.SSLContext, version: TLSVersion) -> None:
    with warnings.catch_warnings():
        # Who asks for the old versions by name has been told already.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion(version)
    if version < TLSVersion.TLS1_2:
        # Above this level OpenSSL 3 does not speak them, whatever the minimum is.
        context.set_ciphers("DEFAULT:@SECLEVEL=0")


def _load_certificate(context: ssl.SSLContext, cert: str, key: str) -> None:
    for option, path in (("tls-cert", cert), ("tls-key", key)):
        _check_readable(option, path)
    try:
        # A password given, even an empty one, keeps OpenSSL from asking at the terminal.
        context.load_cert_chain(cert, key, password="")
    except OSError as error:
        raise ConfigError("tls-cert", cert, f"{cert}, {key}: {_reason(error)}") from error


def _load_authorities(context: ssl.SSLContext, path: str, purpose: ssl.Purpose) -> None:
    if not path:
        context.load_default_certs(purpose)
        return
    _check_readable("tls-root-ca-file", path)
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise ConfigError("tls-root-ca-file", path, f"{path}: {_reason(error)}") from error


def _check_readable(option: str, path: str) -> None:
    """OpenSSL does not say which file it could not open."""
    if not path:
        raise ConfigError(option, path, f"{option} is not given")
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ConfigError(option, path, f"open {path}: {why}") from error


def _reason(error: OSError) -> str:
    """``key values mismatch``, for ``[X509: KEY_VALUES_MISMATCH] ... (_ssl.c:3895)``."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    reason = getattr(error, "reason", None)
    return reason.lower().replace("_", " ") if isinstance(reason, str) else str(error)


class TLSStage:
    """One connection's TLS. ``handshake`` first, until it returns True; then a stage as others.

    What is to be sent without anything to encode (handshake, key updates) is in ``owed``.
    """

    def __init__(
        self, context: ssl.SSLContext, *, server_side: bool, server_hostname: str | None = None
    ) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_side,
            server_hostname=server_hostname,
        )
        self.ended = False  # the peer has said goodbye

    def handshake(self) -> bool:
        """Go on with what was fed; whether it is done.

        Raises:
            TransformError: it failed. An alert that says so to the peer may be owed.
        """
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except (ssl.SSLError, ValueError) as error:
            raise _not_tls(error) from error
        return True

    def owed(self) -> bytes:
        """Bytes for the peer that wait to be sent; they are given once."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def details(self) -> TLSDetails:
        """After the handshake."""
        cipher = self._tls.cipher()
        version = (self._tls.version() or "").replace("v", "")
        return TLSDetails(
            version="TLS1.0" if version == "TLS1" else version,
            cipher_suite=iana_name(cipher[0]) if cipher else "",
            common_name=_common_name(self._tls.getpeercert() or {}),
        )

    def encode(self, data: bytes) -> bytes:
        """Raises: TransformError: the stream is broken."""
        view = memoryview(data)
        try:
            while view:
                view = view[self._tls.write(view) :]  # a record a call
        except ssl.SSLError as error:
            raise _not_tls(error) from error
        return self._outgoing.read()

    def feed(self, data: bytes) -> None:
        self._incoming.write(data)

    def read(self, max_bytes: int) -> bytes:
        """What has arrived, no more than ``max_bytes``; empty when there is nothing more.

        Raises:
            TransformError: what was fed is no TLS, or was tampered with.
        """
        parts: list[bytes] = []
        left_bytes = max_bytes
        try:
            while left_bytes > 0 and not self.ended:
                data = self._tls.read(left_bytes)  # a record a call
                self.ended = not data
                parts.append(data)
                left_bytes -= len(data)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            raise _not_tls(error) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def end(self) -> bytes:
        """The goodbye that tells the peer that nothing was cut off."""
        with suppress(ssl.SSLError):
            self._tls.unwrap()  # wants the peer's goodbye too, for which nobody waits
        return self._outgoing.read()


def _not_tls(error: Exception) -> TransformError:
    reason = _reason(error) if isinstance(error, OSError) else str(error)
    return TransformError("tls", reason)


def _common_name(certificate: Mapping[str, object]) -> str:
    subject = certificate.get("subject", ())
    assert isinstance(subject, tuple)
    names = [value for part in subject for name, value in part if name == "commonName"]
    return str(names[-1]) if names else ""


_OPENSSL_NAME = re.compile(
    r"(?:(?P<exchange>(?:ECDHE|DHE)-(?:RSA|ECDSA|DSS))-)?"
    r"(?:AES(?P<bits>128|256)-(?P<mode>GCM-|CCM)?(?P<rest>8|SHA\d*)?|CHACHA20-POLY1305)"
)


def iana_name(name: str) -> str:
    """A cipher suite by its registered name, which OpenSSL uses for TLS 1.3 only.

    What is none of the common kinds keeps OpenSSL's name.
    """
    found = _OPENSSL_NAME.fullmatch(name)
    if name.startswith("TLS_") or found is None:
        return name
    exchange = (found["exchange"] or "RSA").replace("-", "_")
    if found["bits"] is None:
        return f"TLS_{exchange}_WITH_CHACHA20_POLY1305_SHA256"
    mode = (found["mode"] or "CBC").rstrip("-")
    rest = f"_{found['rest']}" if found["rest"] else ""
    return f"TLS_{exchange}_WITH_AES_{found['bits']}_{mode}{rest}"
