"""The daemon over TLS and compression, on both ports, as clients and operators see it."""

import asyncio
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from nsqpy import Consumer, Message, Producer
from nsqpy.client.options import ClientOptions, Setting, client_options
from nsqpy.errors import ConnectionClosed
from nsqpy.protocol import requests
from tests.certificates import Certificates, Pair
from tests.conftest import StartDaemon
from tests.e2e.daemon import Daemon
from tests.e2e.layered_peer import LayeredPeer
from tests.e2e.peer import Frame
from tests.e2e.test_unix_sockets import UnixDaemon

pytestmark = pytest.mark.slow

OK = Frame(0, b"OK")
COMPRESSIONS = ["", "snappy", "deflate"]
BODIES = [b"hello", bytes(range(256)), b"x" * 500_000]


@pytest.fixture
def flags(certificates: Certificates) -> list[str]:
    """For a daemon with TLS on both ports."""
    return [*certificates.server.flags, "--https-address=127.0.0.1:0"]


@pytest.fixture
def secure_nsqd(start_nsqd: StartDaemon, flags: list[str]) -> Daemon:
    return start_nsqd(*flags)


def run(*command: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """A program that is part of the system, or skip the test by its name."""
    name = str(command[0])
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    return subprocess.run(
        [str(word) for word in command], input=stdin, capture_output=True, text=True, timeout=20
    )


def common_name(peer: LayeredPeer) -> str:
    """Of the certificate that the daemon showed."""
    assert isinstance(peer.socket, ssl.SSLSocket)
    certificate = peer.socket.getpeercert()
    assert certificate is not None
    (name,) = re.findall(r"'commonName', '(\w+)'", str(certificate["subject"]))
    return str(name)


def options_for(certificates: Certificates, *, tls: bool, compression: str) -> ClientOptions:
    """The client library's."""
    asked: dict[str, Setting] = {compression: True} if compression else {}
    if tls:
        asked |= {"tls_v1": True, "tls_root_ca_file": str(certificates.ca)}
    return client_options(asked)


class TestClientLibrary:
    @pytest.mark.parametrize("compression", COMPRESSIONS)
    @pytest.mark.parametrize("tls", [False, True], ids=["clear", "tls"])
    async def test_messages_go_through(
        self, secure_nsqd: Daemon, certificates: Certificates, tls: bool, compression: str
    ) -> None:
        await self._round_trip(
            secure_nsqd, secure_nsqd.tcp_address, certificates, tls=tls, compression=compression
        )

    async def test_over_a_unix_socket(
        self, tmp_path: Path, flags: list[str], certificates: Certificates
    ) -> None:
        with UnixDaemon(tmp_path, *flags) as daemon:
            path = str(daemon.tcp_path)
            await self._round_trip(daemon, path, certificates, tls=True, compression="deflate")

    @staticmethod
    async def _round_trip(
        daemon: Daemon, address: str, certificates: Certificates, *, tls: bool, compression: str
    ) -> None:
        options = options_for(certificates, tls=tls, compression=compression)
        received: asyncio.Queue[bytes] = asyncio.Queue()

        def handle(message: Message) -> None:
            received.put_nowait(message.body)

        async with Producer(address, options=options) as producer:
            for body in BODIES:
                await producer.publish("t", body)
            await producer.publish_many("t", BODIES)
            async with Consumer("t", "c", handle, nsqd=address, options=options):
                async with asyncio.timeout(20):
                    found = [await received.get() for _ in range(2 * len(BODIES))]
                (client,) = daemon.channel_stats("t", "c")["clients"]
        assert sorted(found) == sorted(2 * BODIES)
        assert (client["snappy"], client["deflate"]) == (
            compression == "snappy",
            compression == "deflate",
        )
        assert (client["tls"], client["tls_version"]) == (tls, "TLS1.3" if tls else "")
        assert client["tls_cipher_suite"].startswith("TLS_AES" if tls else "")

    async def test_it_does_not_go_on_in_clear(self, nsqd: Daemon) -> None:
        with pytest.raises(ConnectionClosed, match="nsqd has no TLS, and tls_v1 wants it"):
            await self._publish(nsqd, tls_v1=True)
        assert nsqd.topic_stats("t") == {}

    async def test_it_does_without_compression_where_there_is_none(
        self, start_nsqd: StartDaemon
    ) -> None:
        daemon = start_nsqd("--snappy=false")
        await self._publish(daemon, snappy=True)
        assert daemon.topic_stats("t")["message_count"] == 1

    async def test_it_does_not_talk_to_strangers(self, secure_nsqd: Daemon) -> None:
        with pytest.raises(ConnectionClosed, match=r"tls: .*certificate"):
            await self._publish(secure_nsqd, tls_v1=True)
        await self._publish(secure_nsqd, tls_v1=True, tls_insecure_skip_verify=True)

    @staticmethod
    async def _publish(daemon: Daemon, **settings: Setting) -> None:
        async with Producer(daemon.tcp_address, options=client_options(settings)) as producer:
            await producer.publish("t", b"a")

    def test_tools(self, secure_nsqd: Daemon, certificates: Certificates) -> None:
        words = ["tls_v1", f"tls_root_ca_file,{certificates.ca}", "deflate"]
        address = f"--nsqd-tcp-address={secure_nsqd.tcp_address}"
        nsqpy = (sys.executable, "-m", "nsqpy")
        told = [f"--producer-opt={word}" for word in words]
        assert run(*nsqpy, "pub", "--topic=t", address, *told, "one").returncode == 0
        told = [f"--consumer-opt={word}" for word in words]
        tail = run(*nsqpy, "tail", "--topic=t", "--channel=c", "-n=1", address, *told)
        assert (tail.returncode, tail.stdout) == (0, "one\n")


class TestTCP:
    @pytest.mark.parametrize("compression", COMPRESSIONS[1:])
    def test_what_comes_before_the_layers_is_dropped(self, nsqd: Daemon, compression: str) -> None:
        with LayeredPeer(nsqd.tcp_address) as peer:
            early = b"SUB too early\nnonsense\n"
            peer.identify(
                snappy=compression == "snappy", deflate=compression == "deflate", early=early
            )
            peer.send(requests.pub("t", b"a"))
            assert peer.frame() == OK
        assert nsqd.topic_stats("too") == {}

    @pytest.mark.parametrize("compression", COMPRESSIONS[1:])
    def test_a_broken_stream_ends_the_connection_and_no_more(
        self, nsqd: Daemon, compression: str
    ) -> None:
        with LayeredPeer(nsqd.tcp_address) as peer:
            peer.identify(snappy=compression == "snappy", deflate=compression == "deflate")
            peer.send(requests.pub("t", b"a"))
            assert peer.frame() == OK
            peer.send_raw(b"\x07PUB t\n" * 10)
            assert peer.frame() is None
        assert re.search(
            rf"client\(\S+\) sent a broken stream, closing - {compression}: ", nsqd.log
        )
        assert nsqd.request("/ping").text == "OK"

    def test_a_small_read_does_not_become_a_large_one(self, nsqd: Daemon) -> None:
        with LayeredPeer(nsqd.tcp_address) as peer:
            peer.identify(deflate=True)
            peer.send(bytes(64 << 20))  # 64 kB on the wire: a line too long
            assert peer.frame() is None
        assert nsqd.request("/ping").text == "OK"

    def test_no_handshake_no_connection(self, secure_nsqd: Daemon) -> None:
        with LayeredPeer(secure_nsqd.tcp_address) as peer:
            peer.send(requests.identify({"feature_negotiation": True, "tls_v1": True}))
            assert peer.frame() is not None
            peer.send(b"NOP\n" * 10)
            received = b""
            while data := peer.socket.recv(1 << 16):
                received += data
            # In clear, as an NSQ client can read it.
            assert received.endswith(b"E_IDENTIFY_FAILED IDENTIFY failed tls: wrong version number")

    @pytest.mark.parametrize("required", ["true", "tcp-https"])
    def test_required(
        self, start_nsqd: StartDaemon, flags: list[str], certificates: Certificates, required: str
    ) -> None:
        daemon = start_nsqd(*flags, f"--tls-required={required}")
        with LayeredPeer(daemon.tcp_address) as peer:
            peer.send(b"NOP\n")
            text = b"E_INVALID cannot NOP in current state (TLS required)"
            assert (peer.frame(), peer.frame()) == (Frame(1, text), None)
        with LayeredPeer(daemon.tcp_address) as peer:
            assert peer.identify(snappy=True)["tls_v1"] is False
            peer.send(requests.pub("t", b"a"))
            text = b"E_INVALID cannot PUB in current state (TLS required)"
            assert (peer.frame(), peer.frame()) == (Frame(1, text), None)
        with LayeredPeer(daemon.tcp_address) as peer:
            peer.identify(certificates.context(), snappy=True)
            peer.send(requests.pub("t", b"a"))
            assert peer.frame() == OK

    def test_client_certificates(
        self, start_nsqd: StartDaemon, flags: list[str], certificates: Certificates
    ) -> None:
        daemon = start_nsqd(
            *flags,
            f"--tls-root-ca-file={certificates.ca}",
            "--tls-client-auth-policy=require-verify",
        )
        for pair in (None, certificates.other_client):
            with (
                LayeredPeer(daemon.tcp_address) as peer,
                pytest.raises(OSError, match=r"(?i)alert"),
            ):
                peer.identify(certificates.context(pair))
        with LayeredPeer(daemon.tcp_address) as peer:
            peer.identify(certificates.context(certificates.client))
            peer.send(requests.pub("t", b"a"))
            assert peer.frame() == OK
        assert "IDENTIFY failed tls: peer did not return a certificate\n" in daemon.log
        assert "IDENTIFY failed tls: unable to get local issuer certificate\n" in daemon.log

    def test_the_lowest_version(
        self, start_nsqd: StartDaemon, flags: list[str], certificates: Certificates
    ) -> None:
        daemon = start_nsqd(*flags, "--tls-min-version=tls1.3")
        old = certificates.context()
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with LayeredPeer(daemon.tcp_address) as peer, pytest.raises(ssl.SSLError, match="VERSION"):
            peer.identify(old)
        with LayeredPeer(daemon.tcp_address) as peer:
            peer.identify(certificates.context())


class TestHTTPS:
    def test_curl(self, secure_nsqd: Daemon, certificates: Certificates) -> None:
        url = f"https://{secure_nsqd.https_address}"
        curl = ("curl", "--silent", "--show-error", "--cacert", certificates.ca)
        assert run(*curl, f"{url}/ping").stdout == "OK"
        assert run(*curl, "--data", "hello", f"{url}/pub?topic=t").stdout == "OK"
        assert secure_nsqd.topic_stats("t")["message_count"] == 1
        info = run(*curl, f"{url}/info").stdout
        assert f'"http_port":{secure_nsqd.http_address.rpartition(":")[2]},' in info
        assert run("curl", "--silent", f"{url}/ping").returncode == 60  # an unknown authority

    def test_a_lease_is_read_encrypted(
        self, secure_nsqd: Daemon, certificates: Certificates, tmp_path: Path
    ) -> None:
        for what in ("/topic/create?topic=leased", "/channel/create?topic=leased&channel=c"):
            assert secure_nsqd.request(what, b"").status == 200
        bodies = [b"%06d" % number + bytes(4000) for number in range(1000)]
        secure_nsqd.request("/mpub?topic=leased", b"\n".join(bodies))
        reply = secure_nsqd.request("/lease/create?topic=leased&channel=c&id=a", b"")
        assert reply.status == 200, reply
        path = "/lease/read?id=a"
        plain = secure_nsqd.request(path).body
        assert len(plain) > 4_000_000
        curl = ("curl", "--silent", "--show-error", "--cacert", certificates.ca)
        for spec, expected in (("0-", plain), ("100-3000000", plain[100:3_000_001])):
            file = tmp_path / "read"
            url = f"https://{secure_nsqd.https_address}{path}"
            got = run(*curl, "--range", spec, "--output", str(file), url)
            assert got.returncode == 0, got.stderr
            assert file.read_bytes() == expected

    def test_curl_over_a_unix_socket(self, tmp_path: Path) -> None:
        with UnixDaemon(tmp_path) as daemon:
            curl = ("curl", "--silent", "--unix-socket", daemon.http_path)
            assert run(*curl, "http://nsqd/ping").stdout == "OK"
            assert run(*curl, "--data", "hello", "http://nsqd/pub?topic=t").stdout == "OK"
            assert daemon.topic_stats("t")["message_count"] == 1

    def test_openssl_below_the_lowest_version(
        self, start_nsqd: StartDaemon, flags: list[str], certificates: Certificates
    ) -> None:
        daemon = start_nsqd(*flags, "--tls-min-version=tls1.3")
        s_client = ("openssl", "s_client", "-connect", daemon.https_address)
        refused = run(*s_client, "-tls1_2")
        assert refused.returncode != 0
        assert "no peer certificate available" in refused.stdout
        accepted = run(*s_client, "-tls1_3", "-CAfile", certificates.ca)
        assert accepted.returncode == 0
        assert "Verification: OK" in accepted.stdout

    def test_where_tls_is_required_plain_http_says_where_to_go(
        self, start_nsqd: StartDaemon, flags: list[str], certificates: Certificates
    ) -> None:
        daemon = start_nsqd(*flags, "--tls-required")
        port = daemon.https_address.rpartition(":")[2]
        for path, body in (("/ping", None), ("/pub?topic=t", b"a"), ("/nowhere", None)):
            reply = daemon.request(path, body)
            assert (reply.status, reply.text) == (
                403,
                f'{{"message": "TLS_REQUIRED", "https_port": {port}}}',
            )
        url = f"https://{daemon.https_address}/ping"
        assert run("curl", "--silent", "--cacert", certificates.ca, url).stdout == "OK"

    def test_client_certificates(
        self, start_nsqd: StartDaemon, flags: list[str], certificates: Certificates
    ) -> None:
        daemon = start_nsqd(
            *flags,
            f"--tls-root-ca-file={certificates.ca}",
            "--tls-client-auth-policy=require-verify",
            "--tls-required=tcp-https",
        )
        curl = ("curl", "--silent", "--cacert", certificates.ca)
        url = f"https://{daemon.https_address}/ping"
        assert run(*curl, url).returncode != 0
        shown = ("--cert", certificates.client.cert, "--key", certificates.client.key)
        assert run(*curl, *shown, url).stdout == "OK"
        stranger = certificates.other_client
        assert run(*curl, "--cert", stranger.cert, "--key", stranger.key, url).returncode != 0
        assert daemon.request("/ping").text == "OK"  # plain HTTP stays open


class TestFiles:
    @pytest.fixture
    def pair(self, tmp_path: Path, certificates: Certificates) -> Pair:
        """Files of this test's own, to be changed."""
        pair = Pair(tmp_path / "mine.pem", tmp_path / "mine.key")
        certificates.server.copy_to(pair)
        return pair

    @pytest.fixture
    def renewable(self, start_nsqd: StartDaemon, pair: Pair) -> Daemon:
        return start_nsqd(*pair.flags, "--https-address=127.0.0.1:0")

    def test_renewed_without_dropping_anybody(
        self, renewable: Daemon, pair: Pair, certificates: Certificates
    ) -> None:
        with LayeredPeer(renewable.tcp_address) as before:
            before.identify(certificates.context(), deflate=True)
            before.send(requests.sub("t", "c"), requests.rdy(1))
            assert (before.frame(), common_name(before)) == (OK, "server")

            certificates.issue("renewed").copy_to(pair)
            os.kill(renewable.pid, signal.SIGHUP)
            renewable.wait(lambda: "TLS: certificates read again" in renewable.log, "the reload")

            with LayeredPeer(renewable.tcp_address) as after:
                after.identify(certificates.context())
                assert common_name(after) == "renewed"
                after.send(requests.pub("t", b"still here"))
                assert after.frame() == OK
            message = before.frame()
            assert message is not None
            assert message.data.endswith(b"still here")
        address = renewable.https_address
        shown = run("openssl", "s_client", "-connect", address, "-CAfile", certificates.ca)
        assert "CN = renewed" in shown.stdout
        assert "Verification: OK" in shown.stdout

    def test_files_that_do_not_do_change_nothing(
        self, renewable: Daemon, pair: Pair, certificates: Certificates
    ) -> None:
        pair.key.write_bytes(certificates.client.key.read_bytes())
        os.kill(renewable.pid, signal.SIGHUP)
        line = "ERROR: TLS: the certificates stay as they were - "
        renewable.wait(lambda: line in renewable.log, "the refusal")
        assert "key values mismatch" in renewable.log
        with LayeredPeer(renewable.tcp_address) as peer:
            peer.identify(certificates.context())
            assert common_name(peer) == "server"
        url = f"https://{renewable.https_address}/ping"
        assert run("curl", "--silent", "--cacert", certificates.ca, url).stdout == "OK"

    def test_a_start_with_files_that_do_not_do(
        self, tmp_path: Path, certificates: Certificates
    ) -> None:
        mixed = Pair(certificates.server.cert, certificates.client.key)
        with pytest.raises(AssertionError) as refused:
            Daemon(tmp_path, *mixed.flags).start()
        text = "FATAL: failed to instantiate nsqd - failed to build TLS config - "
        assert text in str(refused.value)
