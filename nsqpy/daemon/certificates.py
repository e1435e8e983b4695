"""The daemon's certificates: read at the start, and again on SIGHUP. Source: docs/security.md."""

import asyncio
import logging
import ssl

from nsqpy.config import CLIENT_CERTIFICATE_POLICIES, NsqdConfig
from nsqpy.daemon.http_api import HTTPApi
from nsqpy.daemon.tcp import Connections
from nsqpy.errors import ConfigError
from nsqpy.net.tls import ServerTLS

__all__ = ["Certificates"]

log = logging.getLogger(__name__)


class Certificates:
    """Reads the files that the options name, and hands what they say to both ports."""

    def __init__(self, config: NsqdConfig) -> None:
        self._tls = ServerTLS(
            cert=config.tls_cert,
            key=config.tls_key,
            root_ca_file=config.tls_root_ca_file,
            # Python's ssl cannot take a certificate without looking whether it is good, so the
            # policy of any certificate is the stricter one here.
            client_certificates=config.tls_client_auth_policy in CLIENT_CERTIFICATE_POLICIES,
            min_version=config.tls_min_version,
        )
        self._renewal: asyncio.Task[None] | None = None

    def read(self) -> ssl.SSLContext:
        """Raises: ConfigError: as ``ServerTLS.context``."""
        return self._tls.context()

    def reload(self, connections: Connections, http: HTTPApi) -> None:
        """Take up changed files for connections to come; files that do not do change nothing."""
        try:
            context = self.read()
        except ConfigError as error:
            log.error("TLS: the certificates stay as they were - %s", error)
            return
        connections.tls_context = context
        self._renewal = asyncio.ensure_future(self._renew(http, context, self._renewal))

    async def _renew(
        self, http: HTTPApi, context: ssl.SSLContext, before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await before
        try:
            await http.renew_tls(context)
        except OSError as error:
            log.error("HTTPS: the certificates stay as they were - %s", error)
        else:
            log.info("TLS: certificates read again")

    async def stop(self) -> None:
        """Wait for what is under way."""
        if self._renewal is not None:
            await self._renewal
