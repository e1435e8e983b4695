"""Certificates for tests, made anew for each run: by an authority, and by a stranger."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme

__all__ = ["Certificates", "Pair"]


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as files."""

    cert: Path
    key: Path

    @property
    def flags(self) -> list[str]:
        """For the daemon."""
        return [f"--tls-cert={self.cert}", f"--tls-key={self.key}"]

    def copy_to(self, other: "Pair") -> None:
        """Put this certificate in the place of another."""
        other.cert.write_bytes(self.cert.read_bytes())
        other.key.write_bytes(self.key.read_bytes())


class Certificates:
    """``server`` is for the loopback, ``client`` for ``joe``; ``other_client`` is by an authority
    that nobody knows."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._authority = trustme.CA()
        self.ca = directory / "ca.pem"
        self._authority.cert_pem.write_to_path(self.ca)
        self.server = self.issue("server")
        self.client = self.issue("joe")
        self.other_client = self._write("stranger", trustme.CA().issue_cert("mallory"))

    def issue(self, name: str) -> Pair:
        """One more certificate by the known authority, good for the loopback."""
        hosts = ("127.0.0.1", "localhost")
        return self._write(name, self._authority.issue_cert(*hosts, common_name=name))

    def context(self, pair: Pair | None = None) -> ssl.SSLContext:
        """A client's, that trusts the authority and shows ``pair``."""
        context = ssl.create_default_context(cafile=self.ca)
        if pair is not None:
            context.load_cert_chain(pair.cert, pair.key)
        return context

    def _write(self, name: str, issued: trustme.LeafCert) -> Pair:
        pair = Pair(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        pair.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(pair.key)
        return pair
