"""Flag beats file beats default; and what a refused start says."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from nsqpy import startup
from nsqpy.config import NsqdConfig, TLSRequired
from nsqpy.errors import ConfigError
from nsqpy.options import FlagError, options_of
from nsqpy.startup import Loaded, load, startup_failure
from nsqpy_lookupd import config as lookupd_config

ROOT = Path(__file__).parents[2]


def holding(content: str | bytes) -> Callable[[Path], bytes]:
    def read_file(path: Path) -> bytes:
        assert path == Path("n.toml")
        return content.encode() if isinstance(content, str) else content

    return read_file


def loaded(*arguments: str, file: str = "") -> Loaded:
    flags = ["--config=n.toml", *arguments] if file else arguments
    return load(flags, holding(file), "vm")


def failure(*arguments: str, file: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(*arguments, file=file)
    assert not isinstance(caught.value, FlagError)
    text, status = startup_failure(caught.value)
    assert status == 1
    assert "\n" not in text
    return text


def test_defaults() -> None:
    assert loaded() == Loaded(config=NsqdConfig(node_id=617))


def test_flag_beats_file_beats_default() -> None:
    file = 'msg_timeout = "30s"\nmax_rdy_count = 7\nid = 3\nenable_experiment = ["a", "b"]\n'
    config = loaded("-msg-timeout=90s", "--enable-experiment=c", file=file).config
    assert config == NsqdConfig(
        msg_timeout_ns=90_000_000_000, max_rdy_count=7, node_id=3, enable_experiment=("c",)
    )


def test_the_file_as_the_original_reads_it() -> None:
    file = 'log_level = "WARN"\ntls_min_version = ""\ntls_required = "false"\nsync_timeout = 500\n'
    loaded_file = loaded(file=file)
    assert loaded_file == Loaded(
        config=NsqdConfig(node_id=617, log_level="warn", sync_timeout_ns=500_000_000)
    )
    assert loaded_file.config.tls_required is TLSRequired.NO


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("-max-deflate-level=10", "--max-deflate-level must be [1,9]"),
        ("-node-id=1024", "--node-id must be [0,1024)"),
        ("-auth-http-request-method=PUT", "--auth-http-request-method must be post or get"),
        (
            "-e2e-processing-latency-percentile=0.5,1.5",
            "invalid E2E processing latency percentile: 1.5",
        ),
        ("-sync-timeout=0s", "--sync-timeout must be more than 0s"),
        ("-mem-queue-size=-1", "--mem-queue-size must be at least 0"),
        ("-tcp-address=4150", '--tcp-address "4150" must be host:port, or the path of a socket'),
        ("-tcp-address=", '--tcp-address "" must be host:port, or the path of a socket'),
        ("-http-address=h:x", '--http-address "h:x" must end in a port, 0 to 65535'),
        ("-tls-cert=a.pem", "--tls-cert is not supported yet: refusing to start unprotected"),
        ("-tls-key=a.pem", "--tls-key is not supported yet: refusing to start unprotected"),
        ("-tls-required", "--tls-required is not supported yet: refusing to start unprotected"),
        (
            "-tls-client-auth-policy=require",
            "--tls-client-auth-policy is not supported yet: refusing to start unprotected",
        ),
        (
            "-auth-http-address=a:1",
            "--auth-http-address is not supported yet: refusing to start unprotected",
        ),
    ],
)
def test_bad_values_of_flags(arguments: str, text: str) -> None:
    assert failure(arguments) == f"failed to instantiate nsqd - {text}"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("id = 1024", "failed to instantiate nsqd - id (in n.toml) must be [0,1024)"),
        (
            'tls_required = "tcp-https"',
            "failed to instantiate nsqd - tls_required (in n.toml) is not supported yet: "
            "refusing to start unprotected",
        ),
        (
            'log_level = "warning"',
            'failed parsing log_level "warning" in n.toml - '
            "must be one of debug, info, warn, error, fatal",
        ),
        (
            'durability = "yes"',
            'failed parsing durability "yes" in n.toml - must be one of memory, disk, fsync',
        ),
        ("snappy = 1", "failed parsing snappy 1 in n.toml - must be true or false"),
        (
            "max_rdy_cuont = 1",
            'failed to load config file n.toml - unknown key "max_rdy_cuont" '
            '(did you mean "max_rdy_count"?)',
        ),
        (
            "node_id = 1",
            'failed to load config file n.toml - unknown key "node_id" (did you mean "id"?)',
        ),
    ],
)
def test_bad_values_of_the_file(file: str, text: str) -> None:
    assert failure(file=file) == text


def test_a_file_that_cannot_be_read() -> None:
    def missing(path: Path) -> bytes:
        raise FileNotFoundError(2, "No such file or directory")

    with pytest.raises(ConfigError) as caught:
        load(["-config=q.toml"], missing, "vm")
    text = "failed to load config file q.toml - open q.toml: no such file or directory"
    assert startup_failure(caught.value) == (text, 1)
    with pytest.raises(ConfigError, match="not UTF-8 at byte 1"):
        load(["-config=n.toml"], holding(b"#\xff"), "vm")


def test_what_is_not_built_yet_is_told_once_for_each_option() -> None:
    warnings = loaded("-statsd-address=a:8125", "-enable-experiment=x").warnings
    assert sorted(warnings) == [
        "not supported yet: --enable-experiment has no effect",
        "not supported yet: --statsd-address has no effect",
    ]
    assert loaded("-snappy=false", "-https-address=", "-statsd-mem-stats").warnings == ()


def test_what_decides_nothing() -> None:
    assert loaded("-verbose", "-worker-id", "-queue-scan-worker-pool-max=9").warnings == ()
    assert loaded(file="verbose = true").warnings == ("verbose in n.toml has no effect",)
    assert loaded("stray", "-n").warnings == ("ignored, as is what follows it: 'stray'",)
    with pytest.raises(FlagError):
        loaded("-worker-id=5")


def test_answers() -> None:
    assert re.fullmatch(r"nsqd v1\.3\.0 \(built w/python3\..+\)\n", loaded("-version").answer or "")
    assert loaded("-sample-config").answer == startup.sample_file()
    help_text = loaded("-h").answer or ""
    for known in options_of(NsqdConfig):
        assert f"  --{known.flag}" in help_text
    assert max(len(line) for line in help_text.splitlines()) <= 92


def test_the_sample_file_says_the_defaults() -> None:
    keys = re.findall(r"^# ([a-z0-9_]+ = .*)$", startup.sample_file(), re.MULTILINE)
    settings = "\n".join(line for line in keys if not line.startswith("id ="))
    assert len(keys) == len(options_of(NsqdConfig))
    assert loaded(file=settings) == loaded()


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("docs/configuration.md", startup.markdown_page()),
        ("deploy/nsqd.toml", startup.sample_file()),
        ("deploy/nsqlookupd.toml", lookupd_config.sample_file()),
    ],
)
def test_generated_files_are_up_to_date(path: str, content: str) -> None:
    assert (ROOT / path).read_text() == content, "make docs"


def test_the_address_towards_lookupd_needs_one() -> None:
    assert loaded("-broadcast-address=auto", "-lookupd-tcp-address=a:4160").warnings == ()
    reason = "auto is the address towards an nsqlookupd: needs lookupd-tcp-address"
    expected = f"failed to instantiate nsqd - --broadcast-address {reason}"
    assert failure("-broadcast-address=auto") == expected


def test_an_nsqlookupd_is_not_a_socket() -> None:
    reason = '--lookupd-tcp-address "/a/b" must be host:port'
    assert failure("-lookupd-tcp-address=/a/b") == f"failed to instantiate nsqd - {reason}"
