"""Addresses of nsqlookupd, as users write them."""

import pytest

from nsqpy.client.lookup import lookupd_url
from nsqpy.errors import ConfigError


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("h:4161", "http://h:4161"),
        (":4161", "http://127.0.0.1:4161"),
        ("[::1]:4161", "http://[::1]:4161"),
        ("http://h:4161", "http://h:4161"),
        ("http://h:4161/", "http://h:4161"),
        ("http://h:4161/lookup", "http://h:4161"),
        ("http://h:80/nsq/lookup?x=y", "http://h:80/nsq"),
    ],
)
def test_addresses(address: str, url: str) -> None:
    assert lookupd_url(address) == url


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("h", "missing port"),
        ("http://h/lookup", "missing port"),
        ("h:0", "missing port"),
        ("", "missing port"),
        ("h:x", "Port could not be cast"),
        ("h:70000", "Port out of range"),
        ("https://h:1", "https is not supported"),
        ("[::1:4161", "Invalid IPv6 URL"),
    ],
)
def test_what_is_no_address(address: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as raised:
        lookupd_url(address)
    assert f'lookupd address "{address}"' in str(raised.value)
