"""TLS in memory: two stages back to back, and contexts made of good and bad files."""

import ssl
from pathlib import Path

import pytest

from nsqpy.config import TLSVersion
from nsqpy.errors import ConfigError, TransformError
from nsqpy.net.tls import ClientTLS, ServerTLS, TLSStage, iana_name
from tests.certificates import Certificates, Pair

BODIES = [b"a", b"what nobody on the way may read", bytes(200_000), b"z" * 16_384]


def server_tls(
    certificates: Certificates,
    *,
    client_certificates: bool = False,
    min_version: TLSVersion = TLSVersion.TLS1_2,
) -> ServerTLS:
    return ServerTLS(
        cert=str(certificates.server.cert),
        key=str(certificates.server.key),
        root_ca_file=str(certificates.ca),
        client_certificates=client_certificates,
        min_version=min_version,
    )


def server_stage(context: ssl.SSLContext) -> TLSStage:
    return TLSStage(context, server_side=True)


def client_stage(context: ssl.SSLContext, host: str = "127.0.0.1") -> TLSStage:
    return TLSStage(context, server_side=False, server_hostname=host)


def shake_hands(client: TLSStage, server: TLSStage, step: int = 1 << 20) -> None:
    """Until both are done; what either sends arrives ``step`` bytes at a time."""
    done = [False, False]
    for _ in range(10):
        for index, (near, far) in enumerate(((client, server), (server, client))):
            done[index] = done[index] or near.handshake()
            sent = near.owed()
            for at in range(0, len(sent), step):
                far.feed(sent[at : at + step])
                if at + step < len(sent) and not done[1 - index]:
                    assert far.handshake() is False
        if all(done):
            return
    raise AssertionError("no end of the handshake")


def drained(stage: TLSStage) -> bytes:
    data = b""
    while piece := stage.read(10_000):
        assert len(piece) <= 10_000
        data += piece
    return data


class TestStage:
    @pytest.mark.parametrize("step", [1, 1 << 20])
    def test_both_directions(self, certificates: Certificates, step: int) -> None:
        client = client_stage(certificates.context())
        server = server_stage(server_tls(certificates).context())
        shake_hands(client, server, step)
        for near, far in ((client, server), (server, client)):
            for body in BODIES:
                wire = near.encode(body)
                if len(body) >= 16:  # a shorter one may stand in the ciphertext by chance
                    assert body not in wire
                far.feed(wire)
                assert drained(far) == body
            assert far.read(10) == b""

    def test_what_it_came_to(self, certificates: Certificates) -> None:
        context = certificates.context(certificates.client)
        server = server_stage(server_tls(certificates, client_certificates=True).context())
        shake_hands(client_stage(context), server)
        details = server.details()
        assert details.version == "TLS1.3"
        assert details.cipher_suite.startswith("TLS_AES_")
        assert details.common_name == "joe"

    def test_a_certificate_that_nobody_asked_for_says_nothing(
        self, certificates: Certificates
    ) -> None:
        server = server_stage(server_tls(certificates).context())
        shake_hands(client_stage(certificates.context(certificates.client)), server)
        assert server.details().common_name == ""

    def test_a_goodbye_ends_it(self, certificates: Certificates) -> None:
        client = client_stage(certificates.context())
        server = server_stage(server_tls(certificates).context())
        shake_hands(client, server)
        server.feed(client.encode(b"last words") + client.end())
        assert (drained(server), server.ended) == (b"last words", True)

    def test_what_was_tampered_with_is_refused(self, certificates: Certificates) -> None:
        client = client_stage(certificates.context())
        server = server_stage(server_tls(certificates).context())
        shake_hands(client, server)
        wire = bytearray(client.encode(b"hello"))
        wire[-1] ^= 1
        server.feed(bytes(wire))
        with pytest.raises(TransformError, match=r"^tls: "):
            server.read(100)
        assert isinstance(server.end(), bytes)

    def test_what_is_no_tls_is_refused_with_an_alert(self, certificates: Certificates) -> None:
        server = server_stage(server_tls(certificates).context())
        server.feed(b"PUB t\n\0\0\0\1a" * 10)
        with pytest.raises(TransformError, match=r"^tls: wrong version number$"):
            server.handshake()


class TestWhoIsLetIn:
    def test_without_a_certificate(self, certificates: Certificates) -> None:
        server = server_stage(server_tls(certificates, client_certificates=True).context())
        with pytest.raises(TransformError, match=r"^tls: peer did not return a certificate$"):
            shake_hands(client_stage(certificates.context()), server)

    def test_with_one_by_an_unknown_authority(self, certificates: Certificates) -> None:
        server = server_stage(server_tls(certificates, client_certificates=True).context())
        client = client_stage(certificates.context(certificates.other_client))
        with pytest.raises(TransformError, match=r"^tls: unable to get local issuer certificate$"):
            shake_hands(client, server)

    @pytest.mark.parametrize(
        ("minimum", "maximum", "version"),
        [
            (TLSVersion.TLS1_0, ssl.TLSVersion.TLSv1_2, "TLS1.2"),
            (TLSVersion.TLS1_3, ssl.TLSVersion.TLSv1_3, "TLS1.3"),
            (TLSVersion.TLS1_3, ssl.TLSVersion.TLSv1_2, ""),
        ],
    )
    def test_by_version(
        self,
        certificates: Certificates,
        minimum: TLSVersion,
        maximum: ssl.TLSVersion,
        version: str,
    ) -> None:
        context = certificates.context()
        context.maximum_version = maximum
        server = server_stage(server_tls(certificates, min_version=minimum).context())
        if version:
            shake_hands(client_stage(context), server)
            assert server.details().version == version
        else:
            with pytest.raises(TransformError, match=r"^tls: unsupported protocol$"):
                shake_hands(client_stage(context), server)

    def test_the_old_versions_when_asked_for(self, certificates: Certificates) -> None:
        client_context = ClientTLS(root_ca_file=str(certificates.ca)).context()
        old = ClientTLS(root_ca_file=str(certificates.ca), min_version=TLSVersion.TLS1_0).context()
        with pytest.warns(DeprecationWarning, match="TLSv1 is deprecated"):
            old.maximum_version = ssl.TLSVersion.TLSv1
        server_context = server_tls(certificates, min_version=TLSVersion.TLS1_0).context()
        server = server_stage(server_context)
        shake_hands(client_stage(old), server)
        assert server.details().version == "TLS1.0"
        assert server.details().cipher_suite.startswith("TLS_ECDHE_")
        assert client_context.minimum_version == ssl.TLSVersion.TLSv1_2
        with pytest.raises(TransformError, match=r"^tls: unsupported protocol$"):
            shake_hands(client_stage(old), server_stage(server_tls(certificates).context()))


class TestClient:
    def test_it_wants_to_know_who_the_server_is(self, certificates: Certificates) -> None:
        server = server_stage(server_tls(certificates).context())
        with pytest.raises(TransformError, match="unable to get local issuer certificate"):
            shake_hands(client_stage(ClientTLS().context()), server)

    def test_and_that_it_is_the_right_one(self, certificates: Certificates) -> None:
        server = server_stage(server_tls(certificates).context())
        context = ClientTLS(root_ca_file=str(certificates.ca)).context()
        with pytest.raises(TransformError, match="not valid for 'elsewhere'"):
            shake_hands(client_stage(context, "elsewhere"), server)

    def test_unless_told_otherwise(self, certificates: Certificates) -> None:
        server = server_stage(server_tls(certificates).context())
        shake_hands(client_stage(ClientTLS(verify=False).context(), "elsewhere"), server)


class TestFiles:
    def test_missing(self, certificates: Certificates) -> None:
        with pytest.raises(ConfigError, match=r"^open /nowhere.pem: no such file or directory$"):
            ServerTLS(cert="/nowhere.pem", key="/nowhere.key").context()
        server = str(certificates.server.cert)
        with pytest.raises(ConfigError, match=r"^tls-key is not given$"):
            ServerTLS(cert=server, key="").context()
        key = str(certificates.server.key)
        with pytest.raises(ConfigError, match=r"^open /nowhere.pem: no such file or directory$"):
            ServerTLS(
                cert=server, key=key, root_ca_file="/nowhere.pem", client_certificates=True
            ).context()

    def test_that_do_not_fit(self, certificates: Certificates) -> None:
        mixed = Pair(certificates.server.cert, certificates.client.key)
        with pytest.raises(ConfigError, match="key values mismatch"):
            ServerTLS(cert=str(mixed.cert), key=str(mixed.key)).context()

    def test_that_are_no_pem(self, certificates: Certificates, tmp_path: Path) -> None:
        text = tmp_path / "text"
        text.write_text("hello")
        with pytest.raises(ConfigError, match=f"^{text}, {text}: "):
            ServerTLS(cert=str(text), key=str(text)).context()
        with pytest.raises(ConfigError, match=f"^{text}: no certificate or crl found$"):
            ClientTLS(root_ca_file=str(text)).context()


@pytest.mark.parametrize(
    ("openssl", "iana"),
    [
        ("TLS_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
        ("ECDHE-ECDSA-AES256-SHA384", "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384"),
        ("ECDHE-ECDSA-CHACHA20-POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
        ("DHE-RSA-AES256-SHA", "TLS_DHE_RSA_WITH_AES_256_CBC_SHA"),
        ("AES128-SHA", "TLS_RSA_WITH_AES_128_CBC_SHA"),
        ("ECDHE-ECDSA-AES256-CCM8", "TLS_ECDHE_ECDSA_WITH_AES_256_CCM_8"),
        ("AES256-CCM", "TLS_RSA_WITH_AES_256_CCM"),
        ("PSK-AES128-CBC-SHA", "PSK-AES128-CBC-SHA"),
    ],
)
def test_names_of_cipher_suites(openssl: str, iana: str) -> None:
    assert iana_name(openssl) == iana
