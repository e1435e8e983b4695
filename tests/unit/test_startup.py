"""Flag beats file beats default; and what a refused start says."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from nsqpy.config import NsqdConfig, TLSRequired
from nsqpy.errors import ConfigError
from nsqpy.options import FlagError, options_of
from nsqpy.settings import Loaded
from nsqpy.startup import NSQD, exposure_warnings, load, markdown_page, startup_failure
from nsqpy_lookupd.config import NSQLOOKUPD

ROOT = Path(__file__).parents[2]


def holding(content: str | bytes) -> Callable[[Path], bytes]:
    def read_file(path: Path) -> bytes:
        assert path == Path("n.toml")
        return content.encode() if isinstance(content, str) else content

    return read_file


def loaded(*arguments: str, file: str = "") -> Loaded[NsqdConfig]:
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
        ("-https-address=/run/nsqd.sock", '--https-address "/run/nsqd.sock" must be host:port'),
        ("-statsd-address=graphite", '--statsd-address "graphite" must be host:port'),
        ("-lookupd-tcp-address=/a/b", '--lookupd-tcp-address "/a/b" must be host:port'),
        (
            "-tcp-address=127.0.0.1",
            '--tcp-address "127.0.0.1" must be host:port, or the path of a socket',
        ),
        (
            "-http-address=localhost",
            '--http-address "localhost" must be host:port, or the path of a socket',
        ),
        ("-tls-required", "cannot require TLS client connections without TLS key and cert"),
        (
            "-tls-client-auth-policy=require-verify",
            "cannot require TLS client connections without TLS key and cert",
        ),
        (
            "-tls-client-auth-policy=verify",
            "--tls-client-auth-policy must be one of require, require-verify",
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
            "failed to instantiate nsqd - "
            "cannot require TLS client connections without TLS key and cert",
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
    (warning,) = loaded("-enable-experiment=x").warnings
    assert warning == "not supported yet: --enable-experiment has no effect"
    assert loaded("-snappy=false", "-https-address=", "-statsd-mem-stats").warnings == ()


def test_percentiles_of_the_command_line_are_sorted_and_those_of_the_file_are_not() -> None:
    line = loaded("-e2e-processing-latency-percentile=0.5,1,0.99").config
    assert line.e2e_processing_latency_percentiles == (1.0, 0.99, 0.5)
    file = loaded(file="e2e_processing_latency_percentiles = [0.5, 1.0, 0.99]").config
    assert file.e2e_processing_latency_percentiles == (0.5, 1.0, 0.99)


@pytest.mark.parametrize(
    ("arguments", "warnings"),
    [
        ((), []),
        (("-tcp-address=localhost:1", "-http-address=[::1]:1"), []),
        (("-tcp-address=/run/nsqd.sock", "-http-address="), []),
        (("-tcp-address=:4150",), ["TCP :4150"]),
        (
            ("-tcp-address=0.0.0.0:4150", "-http-address=node:4151"),
            ["TCP 0.0.0.0:4150 or HTTP node:4151"],
        ),
        (("-tcp-address=0.0.0.0:4150", "-auth-http-address=a:1"), []),
        (("-http-address=0.0.0.0:4151", "-auth-http-address=a:1"), ["HTTP 0.0.0.0:4151"]),
        (("-http-address=0.0.0.0:4151", "-auth-token-file=t"), []),
        (("-https-address=:4152", "-tls-cert=c", "-tls-key=k"), ["HTTPS :4152"]),
        (
            (
                *("-tcp-address=:4150", "-http-address=:4151", "-https-address=:4152"),
                *("-tls-cert=c", "-tls-key=k", "-tls-client-auth-policy=require-verify"),
            ),
            [],
        ),
    ],
)
def test_what_is_open_to_the_network_is_said(
    arguments: tuple[str, ...], warnings: list[str]
) -> None:
    found = exposure_warnings(loaded(*arguments).config)
    assert len(found) == len(warnings)
    assert all(
        f"whoever reaches {one} can" in text for one, text in zip(warnings, found, strict=True)
    )


TLS_FLAGS = ("-tls-cert=c.pem", "-tls-key=k.pem")


@pytest.mark.parametrize(
    ("arguments", "required"),
    [
        ((), TLSRequired.NO),
        (("-tls-required",), TLSRequired.ALL),
        (("-tls-client-auth-policy=require-verify",), TLSRequired.ALL),
        (("-tls-client-auth-policy=require", "-tls-required=false"), TLSRequired.ALL),
        (
            ("-tls-client-auth-policy=require-verify", "-tls-required=tcp-https"),
            TLSRequired.TCP_HTTPS,
        ),
    ],
)
def test_a_client_certificate_policy_requires_tls(
    arguments: tuple[str, ...], required: TLSRequired
) -> None:
    assert loaded(*TLS_FLAGS, *arguments).config.tls_required is required


def test_what_does_less_than_it_says_is_told() -> None:
    assert loaded(*TLS_FLAGS, "-tls-client-auth-policy=require").warnings == (
        "--tls-client-auth-policy: a certificate has to be good, as with require-verify",
    )
    assert loaded("-https-address=127.0.0.1:0", "-tls-root-ca-file=a.pem").warnings == (
        "--https-address has no effect without --tls-cert and --tls-key",
        "--tls-root-ca-file has no effect without --tls-cert and --tls-key",
    )
    assert loaded(*TLS_FLAGS, "-https-address=127.0.0.1:0").warnings == ()


def test_what_decides_nothing() -> None:
    assert loaded("-verbose", "-worker-id", "-queue-scan-worker-pool-max=9").warnings == ()
    assert loaded(file="verbose = true").warnings == ("verbose in n.toml has no effect",)
    assert loaded("stray", "-n").warnings == ("ignored, as is what follows it: 'stray'",)
    with pytest.raises(FlagError):
        loaded("-worker-id=5")


def test_answers() -> None:
    assert re.fullmatch(r"nsqd v1\.3\.0 \(built w/python3\..+\)\n", loaded("-version").answer or "")
    assert loaded("-sample-config").answer == NSQD.sample_file()
    help_text = loaded("-h").answer or ""
    for known in options_of(NsqdConfig):
        assert f"  --{known.flag}" in help_text
    assert max(len(line) for line in help_text.splitlines()) <= 92


def test_the_sample_file_says_the_defaults() -> None:
    keys = re.findall(r"^# ([a-z0-9_]+ = .*)$", NSQD.sample_file(), re.MULTILINE)
    settings = "\n".join(line for line in keys if not line.startswith("id ="))
    assert len(keys) == len(options_of(NsqdConfig))
    assert loaded(file=settings) == loaded()


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("docs/configuration.md", markdown_page()),
        ("deploy/nsqd.toml", NSQD.sample_file()),
        ("deploy/nsqlookupd.toml", NSQLOOKUPD.sample_file()),
    ],
)
def test_generated_files_are_up_to_date(path: str, content: str) -> None:
    assert (ROOT / path).read_text() == content, "make docs"


def test_the_address_towards_lookupd_needs_one() -> None:
    assert loaded("-broadcast-address=auto", "-lookupd-tcp-address=a:4160").warnings == ()
    reason = "auto is the address towards an nsqlookupd: needs lookupd-tcp-address"
    expected = f"failed to instantiate nsqd - --broadcast-address {reason}"
    assert failure("-broadcast-address=auto") == expected
