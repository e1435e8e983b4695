"""Client options: by name, in range, or refused with a reason."""

from datetime import timedelta

import pytest

from nsqpy.client.options import ClientOptions, Setting, client_options
from nsqpy.client.rdy import BackoffStrategy
from nsqpy.clock import MILLISECOND, SECOND
from nsqpy.errors import ConfigError


@pytest.mark.parametrize(
    "value", ["1500ms", "1.5s", 1500, "1500", timedelta(seconds=1, milliseconds=500)]
)
def test_durations(value: Setting) -> None:
    assert client_options({"msg-timeout": value}).msg_timeout_ns == 1500 * MILLISECOND


def test_names_take_dashes_and_underscores_and_text() -> None:
    options = client_options({"max-in-flight": "200", "max_attempts": 0, "hostname": "h"})
    assert (options.max_in_flight, options.max_attempts, options.hostname) == (200, 0, "h")
    strategy = client_options({"backoff_strategy": "full_jitter"}).backoff_strategy
    assert strategy is BackoffStrategy.FULL_JITTER


def test_settings_change_the_base_and_leave_it() -> None:
    base = ClientOptions(max_in_flight=7)
    changed = client_options({"sample_rate": 3}, base)
    assert (changed.max_in_flight, changed.sample_rate, base.sample_rate) == (7, 3, 0)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("max_in_fligth", 1, "unknown client option max_in_fligth"),
        ("max_in_flight", -1, "max_in_flight: -1 is below the minimum of 0"),
        ("max_in_flight", "many", "max_in_flight: invalid literal"),
        ("max_in_flight", True, "max_in_flight: True is not an integer"),
        ("read_timeout", "6m", "read_timeout: 6m0s is above the maximum of 5m0s"),
        ("read_timeout", "1s", "heartbeat_interval must not exceed read_timeout"),
        ("read_timeout", "soon", "read_timeout: "),
        ("sample_rate", 100, "sample_rate: 100 is above the maximum of 99"),
        ("lookupd_poll_jitter", 1.5, "lookupd_poll_jitter: 1.5 is above the maximum of 1"),
        ("backoff_strategy", "doubling", "backoff_strategy: 'doubling' is not"),
        ("tls_v1", "perhaps", "tls_v1: 'perhaps' is not true or false"),
        ("tls_min_version", "ssl3.0", "tls_min_version: must be one of tls1.0, tls1.1, tls1.2"),
        ("deflate_level", 0, "deflate_level: 0 is below the minimum of 1"),
        ("skip_lookupd_authorization", "t", "skip_lookupd_authorization is not supported yet"),
    ],
)
def test_refusals(name: str, value: Setting, text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        client_options({name: value})
    assert str(raised.value).startswith(text)
    assert "s3cret" not in str(raised.value)


def test_what_is_not_supported_may_be_switched_off() -> None:
    assert client_options({"skip_lookupd_authorization": "f"}).deflate_level == 6


@pytest.mark.parametrize(
    ("value", "wanted"), [(True, True), ("T", True), ("1", True), (False, False), ("f", False)]
)
def test_compression_is_switched_on_and_off(value: Setting, wanted: bool) -> None:
    options = client_options({"snappy": value})
    assert options.identify_fields()["snappy"] is options.snappy is wanted


def test_two_compressions_are_refused_here_already() -> None:
    with pytest.raises(ConfigError, match="snappy and deflate exclude each other"):
        client_options({"snappy": True, "deflate": "true"})


def test_files_of_tls_are_looked_at_when_tls_is_wanted() -> None:
    settings: dict[str, Setting] = {"tls_root_ca_file": "/nowhere/ca.pem"}
    assert client_options(settings).tls_root_ca_file == "/nowhere/ca.pem"
    with pytest.raises(ConfigError, match=r"^open /nowhere/ca.pem: no such file or directory$"):
        client_options(settings | {"tls_v1": True})


def test_identify_says_what_go_nsq_says() -> None:
    options = ClientOptions(client_id="vm", hostname="vm", user_agent="test/1")
    assert options.identify_fields() == {
        "client_id": "vm",
        "deflate": False,
        "deflate_level": 6,
        "feature_negotiation": True,
        "heartbeat_interval": 30000,
        "hostname": "vm",
        "long_id": "vm",
        "msg_timeout": 0,
        "output_buffer_size": 16384,
        "output_buffer_timeout": 250,
        "sample_rate": 0,
        "short_id": "vm",
        "snappy": False,
        "tls_v1": False,
        "user_agent": "test/1",
    }


def test_off_is_minus_one_on_the_wire() -> None:
    options = client_options({"heartbeat_interval": "-1ns", "output_buffer_timeout": -1})
    fields = options.identify_fields()
    assert (fields["heartbeat_interval"], fields["output_buffer_timeout"]) == (-1, -1)


def test_the_automatic_delay_is_linear_and_capped() -> None:
    options = ClientOptions()
    assert options.requeue_delay_ms(1) == 90_000
    assert options.requeue_delay_ms(3) == 270_000
    assert options.requeue_delay_ms(100) == 900_000
    assert ClientOptions(max_requeue_delay_ns=SECOND).requeue_delay_ms(1) == 1000


def test_a_secret_is_not_shown() -> None:
    options = client_options({"auth_secret": "UNSPEAKABLE"})
    assert options.auth_secret == "UNSPEAKABLE"
    assert "UNSPEAKABLE" not in repr(options)
