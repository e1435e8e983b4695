"""Flag beats file beats default; and what a refused start says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from nsqpy.clock import SECOND
from nsqpy.errors import ConfigError
from nsqpy.options import FlagError
from nsqpy.settings import Loaded
from nsqpy_lookupd.config import LookupdConfig, load


def holding(content: str | bytes) -> Callable[[Path], bytes]:
    def read_file(path: Path) -> bytes:
        assert path == Path("n.toml")
        return content.encode() if isinstance(content, str) else content

    return read_file


def loaded(*arguments: str, file: str | bytes = "") -> Loaded[LookupdConfig]:
    flags = ["--config=n.toml", *arguments] if file else arguments
    return load(flags, holding(file))


def failure(*arguments: str, file: str | bytes = "") -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(*arguments, file=file)
    assert not isinstance(caught.value, FlagError)
    return str(caught.value)


def test_defaults_are_the_originals_but_on_the_loopback() -> None:
    assert loaded() == Loaded(config=LookupdConfig())
    assert LookupdConfig() == LookupdConfig(
        tcp_address="127.0.0.1:4160",
        http_address="127.0.0.1:4161",
        broadcast_address="",
        inactive_producer_timeout_ns=300 * SECOND,
        tombstone_lifetime_ns=45 * SECOND,
        log_level="info",
        log_prefix="[nsqlookupd] ",
    )


def test_flag_beats_file_beats_default() -> None:
    file = 'tcp_address = ":1"\nlog_level = "WARN"\ntombstone_lifetime = 500\n'
    config = loaded(
        "-tcp-address=:2", "--inactive-producer-timeout", "1h15m30.5s", file=file
    ).config
    assert config == LookupdConfig(
        tcp_address=":2",
        log_level="warn",
        tombstone_lifetime_ns=SECOND // 2,
        inactive_producer_timeout_ns=4_530_500_000_000,
    )


def test_what_has_no_effect_is_said() -> None:
    assert loaded("-verbose", "more", "-x", file="verbose = true").warnings == (
        "ignored, as is what follows it: 'more'",
        "verbose in n.toml has no effect",
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("-tcp-address=4160", '--tcp-address "4160" must be host:port'),
        ("-tcp-address=", '--tcp-address "" must be host:port'),
        ("-http-address=/run/x.sock", '--http-address "/run/x.sock" must be host:port'),
        ("-http-address=h:x", '--http-address "h:x" must be host:port'),
        ("-tombstone-lifetime=-1s", "--tombstone-lifetime must be at least 0s"),
        (
            "-inactive-producer-timeout=-1ns",
            "--inactive-producer-timeout must be at least 0s",
        ),
    ],
)
def test_a_wrong_value(arguments: str, text: str) -> None:
    assert failure(arguments) == text


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("tcp_adress = ':1'", 'unknown key "tcp_adress" (did you mean "tcp_address"?)'),
        ("qqqq = 1", 'unknown key "qqqq"'),
        ("log_level = 'loud'", "must be one of debug, info, warn, error, fatal"),
        ("tombstone_lifetime = true", "must not be a boolean"),
        ("http_address = 5", "must be a string"),
        ("http_address = 'x'", 'http_address (in n.toml) "x" must be host:port'),
        ("=", "failed to load config file n.toml - "),
        (b"# \xff", "failed to load config file n.toml - not UTF-8 at byte 2"),
    ],
)
def test_a_wrong_file(file: str | bytes, text: str) -> None:
    assert text in failure(file=file)


def test_a_file_that_is_not_there() -> None:
    def read_file(path: Path) -> bytes:
        raise FileNotFoundError(2, "No such file or directory")

    with pytest.raises(ConfigError) as caught:
        load(["-config=n.toml"], read_file)
    reason = "failed to load config file n.toml - open n.toml: no such file or directory"
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    "argument", ["-tcp-adress=:1", "-log-level=loud", "-tombstone-lifetime=45"]
)
def test_a_command_line_that_cannot_be_understood(argument: str) -> None:
    with pytest.raises(FlagError):
        loaded(argument)


@pytest.mark.parametrize(
    ("argument", "start"),
    [
        ("-version", "nsqlookupd v1.3.0 (built w/python3."),
        ("-h", "nsqpy nsqlookupd: knows which daemon has which topic"),
        ("--sample-config", "# Settings of nsqpy nsqlookupd: "),
    ],
)
def test_an_answer(argument: str, start: str) -> None:
    answer = loaded(argument).answer
    assert answer is not None
    assert answer.startswith(start)


def test_the_sample_file_changes_nothing() -> None:
    sample = loaded("--sample-config").answer
    assert sample is not None
    uncommented = "\n".join(
        line[2:] for line in sample.splitlines() if line.startswith("# ") and " = " in line
    )
    assert loaded(file=uncommented) == loaded()
