"""Options as a user writes them, and what is said about wrong ones."""

import warnings

import pytest

from nsqpy.client.nodes import NodeAddress
from nsqpy.clock import MILLISECOND, SECOND
from nsqpy.errors import ConfigError
from nsqpy.spark.options import ReadOptions, WriteOptions
from tests.certificates import Certificates

GIVEN = {"topic": "orders", "channel": "lake", "nsqdHttpAddresses": "one:4151"}


def test_names_ignore_case_and_values_have_units() -> None:
    options = ReadOptions.of(
        GIVEN
        | {
            "nsqdhttpaddresses": "one:4151, http://[::1]:4161",
            "MAXBYTESPERTRIGGER": "64m",
            "leaseTtl": "90m",
            "pollTimeoutMs": "250",
            "failOnDataLoss": "FALSE",
            "path": "/anything",
        }
    )
    assert options.nsqd == (NodeAddress("one", 4151), NodeAddress("::1", 4161))
    assert options.max_bytes == 64 << 20
    assert options.lease_ttl_ns == 5400 * SECOND
    assert options.poll_timeout_ns == 250 * MILLISECOND
    assert not options.fail_on_data_loss
    assert str(options.nsqd[1]) == "[::1]:4161"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"topic": ""}, "option topic, '': is not a valid topic name"),
        ({"topic": "a b"}, "option topic, 'a b': is not a valid topic name"),
        ({"channel": "c#ephemeral"}, "cannot be leased"),
        ({"nsqdHttpAddresses": "one"}, "'one' is not an HTTP address, host:port"),
        ({"nsqdHttpAddresses": "ftp://one:1"}, "is not an HTTP address"),
        ({"nsqdHttpAddresses": "one:99999"}, "is not an HTTP address"),
        ({"nsqdHttpAddresses": ""}, "one of the two is required"),
        ({"lookupdHttpAddresses": "l:4161"}, "one of the two, not both"),
        ({"maxMessagesPerTrigger": "0"}, "option maxMessagesPerTrigger, '0': must be 1 or more"),
        ({"maxMessagesPerTrigger": "many"}, "option maxMessagesPerTrigger, 'many'"),
        ({"maxBytesPerTrigger": "1x"}, "option maxBytesPerTrigger, '1x'"),
        ({"leaseTtl": "60"}, "option leaseTtl, '60'"),
        ({"leaseTtl": "-1s"}, "must be longer than 0"),
        ({"leaseTtl": "800h"}, "must be 1s to 720h"),
        ({"pollTimeoutMs": "60001"}, "must be 0 to 60000"),
        ({"failOnDataLoss": "maybe"}, "must be true or false"),
        ({"drainId": "a/b"}, "option drainId, 'a/b'"),
        ({"authSecret": "hush\n"}, "option authSecret, '***': must be printable ASCII"),
        ({"tlsCaFile": "/no/x"}, "option tlsCaFile: open /no/x: no such file or directory"),
        ({"tlsCertFile": __file__}, "option tlsKeyFile: tls-key is not given"),
        ({"tlsCaFile": __file__}, f"option tlsCaFile: {__file__}: "),
        ({"tlsInsecureSkipVerify": "1"}, "must be true or false"),
    ],
)
def test_a_wrong_option_is_named(change: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ReadOptions.of(GIVEN | change)
    assert said in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("name", ["topic", "channel"])
def test_a_missing_option_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"option {name} is required"):
        ReadOptions.of({key: value for key, value in GIVEN.items() if key != name})


def test_an_unknown_option_draws_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"no option maxMessages; it has .*maxMessagesPerTrigger"):
        ReadOptions.of(GIVEN | {"maxMessages": "5"})


def test_what_spark_adds_does_not() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        WriteOptions.of(
            {"topic": "t", "nsqdHttpAddresses": "a:1", "path": "", "checkpointlocation": "/c"}
        )


def test_a_secret_is_not_shown() -> None:
    options = ReadOptions.of(GIVEN | {"authSecret": "hush"})
    assert options.auth_secret == "hush"
    assert "hush" not in repr(options)


def test_tls_options_are_for_every_nsqd(certificates: Certificates) -> None:
    pair = certificates.client
    tls = {"tlsCaFile": str(certificates.ca), "tlsCertFile": str(pair.cert)}
    options = ReadOptions.of(GIVEN | tls | {"tlsKeyFile": str(pair.key)})
    assert options.nsqd == (NodeAddress("one", 4151, tls=True),)
    assert options.tls is not None
    assert options.tls.key == pair.key.read_text()
    assert "PRIVATE KEY" not in repr(options)
    assert ReadOptions.of(GIVEN).tls is None
