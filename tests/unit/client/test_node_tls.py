"""What executors are given to speak TLS with, which is text and shows nothing."""

import pickle
import ssl
from pathlib import Path

import pytest

from nsqpy.client.node_tls import NodeTLS
from nsqpy.client.nodes import NodeAddress
from nsqpy.errors import ConfigError
from tests.certificates import Certificates


def read(certificates: Certificates) -> NodeTLS:
    pair = certificates.client
    return NodeTLS.read(str(certificates.ca), str(pair.cert), str(pair.key), verify=True)


def test_what_is_in_the_files_travels(certificates: Certificates) -> None:
    tls = pickle.loads(pickle.dumps(read(certificates)))
    assert tls.key == certificates.client.key.read_text()
    context = tls.context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    (authority,) = context.get_ca_certs(binary_form=True)
    assert ssl.DER_cert_to_PEM_cert(authority).strip() in certificates.ca.read_text()


def test_a_comment_in_a_file_may_be_in_any_encoding(
    certificates: Certificates, tmp_path: Path
) -> None:
    commented = tmp_path / "ca"
    commented.write_bytes(b"# Z\xfcrich\n" + certificates.ca.read_bytes())
    tls = NodeTLS.read(str(commented), "", "", verify=True)
    assert len(tls.context().get_ca_certs()) == 1


def test_nothing_of_it_is_shown(certificates: Certificates) -> None:
    assert repr(read(certificates)) == "NodeTLS(verify=True)"


def test_nobody_is_believed_but_on_request(certificates: Certificates) -> None:
    assert NodeTLS().context().verify_mode is ssl.CERT_REQUIRED
    context = NodeTLS.read("", "", "", verify=False).context()
    assert context.verify_mode is ssl.CERT_NONE


def test_files_that_do_not_fit_are_named(certificates: Certificates, tmp_path: Path) -> None:
    cert, key = str(certificates.client.cert), str(certificates.server.key)
    with pytest.raises(ConfigError, match="key values mismatch"):
        NodeTLS.read("", cert, key, verify=True)
    with pytest.raises(ConfigError, match="no such file"):
        NodeTLS.read(str(tmp_path / "none"), "", "", verify=True)


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("https://one:4152", NodeAddress("one", 4152, tls=True), "https://one:4152"),
        ("https://[::1]:4152/", NodeAddress("::1", 4152, tls=True), "https://[::1]:4152"),
        ("http://one:4151", NodeAddress("one", 4151), "one:4151"),
    ],
)
def test_an_address_keeps_its_scheme(text: str, address: NodeAddress, shown: str) -> None:
    assert NodeAddress.parse(text) == address
    assert str(address) == shown
    assert NodeAddress.parse(shown) == address
