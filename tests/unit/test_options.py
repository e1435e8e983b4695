"""Flags as Go's flag package reads them, TOML beside them, and the texts made from both."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from nsqpy.errors import ConfigError
from nsqpy.options import (
    ConfigFileError,
    FlagError,
    check,
    duration_ns,
    markdown_table,
    number,
    option,
    options_of,
    parse_flags,
    positional,
    read_flags,
    read_toml,
    sample_toml,
    usage,
    values,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    topic: tuple[str, ...] = option((), help="a topic (repeatable)")
    percentile: tuple[float, ...] = option((), parse=number, split=True)
    limit: int = option(10, flag="n", minimum=0, help="how many | at most")
    level: int = option(6, minimum=1, maximum=9)
    shard: int = option(0, minimum=0, below=1024)
    wait_ns: int = option("1m", parse=duration_ns, above=0, help="how long")
    snappy: bool = option(True, help="compress")
    print_topic: bool = option(False)
    name: str = option("x", live=True)
    rest: tuple[str, ...] = positional("MESSAGE", help="what to publish")


OPTIONS = options_of(Sample)


def parse(*arguments: str) -> Sample:
    return Sample(**values(read_flags(OPTIONS, arguments).given))


def toml(content: str) -> Sample:
    return Sample(**values(read_toml(OPTIONS, content, "x.toml").given))


def test_flag_forms() -> None:
    assert parse("-n", "3").limit == parse("--n=3").limit == parse("-n=0x3").limit == 3
    assert parse("--name=a=b").name == "a=b"
    assert parse("-name", "-n").name == "-n"
    assert parse("-name=").name == ""
    assert parse("-n=1", "-n=2").limit == 2
    assert parse("-topic=a", "-topic", "b,c").topic == ("a", "b,c")
    assert parse("-percentile=0.5,1", "-percentile=0.9").percentile == (0.5, 1.0, 0.9)


def test_a_boolean_takes_a_value_only_after_an_equals_sign() -> None:
    assert parse("-print-topic").print_topic
    assert not parse("-snappy=F").snappy
    line = read_flags(OPTIONS, ["-snappy", "false", "-n=1"])
    assert line.rest == ("false", "-n=1")
    assert "limit" not in line.given


@pytest.mark.parametrize(
    ("arguments", "rest"),
    [(["--", "-n=1"], ("-n=1",)), (["-", "-n=1"], ("-", "-n=1")), (["a", "b"], ("a", "b"))],
)
def test_what_ends_the_flags(arguments: Sequence[str], rest: tuple[str, ...]) -> None:
    line = read_flags(OPTIONS, arguments)
    assert (line.rest, line.given) == (rest, {})


@pytest.mark.parametrize("flag", ["-h", "--help", "-help=1"])
def test_help_is_known(flag: str) -> None:
    assert read_flags(OPTIONS, ["-n=1", flag]).help_wanted


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--qqq"], "flag provided but not defined: -qqq"),
        (["-nam=x"], "flag provided but not defined: -nam (did you mean -name?)"),
        (["-wait", "60"], 'invalid value "60" for flag -wait: parse error'),
        (["--n="], 'invalid value "" for flag -n: parse error'),
        (["-n=9223372036854775808"], 'invalid value "9223372036854775808" for flag -n: '
                                     "value out of range"),
        (["-snappy=maybe"], 'invalid boolean value "maybe" for -snappy: parse error'),
        (["-n"], "flag needs an argument: -n"),
        (["---n=1"], "bad flag syntax: ---n=1"),
        (["-=1"], "bad flag syntax: -=1"),
    ],
)  # fmt: skip
def test_error_texts(arguments: Sequence[str], text: str) -> None:
    with pytest.raises(FlagError) as caught:
        read_flags(OPTIONS, arguments)
    assert str(caught.value) == text


def test_toml_forms() -> None:
    assert toml("wait = 1500").wait_ns == 1_500_000_000
    assert toml('wait = "1.5s"').wait_ns == 1_500_000_000
    assert toml('n = "0x10"').limit == toml("n = 16").limit == 16
    assert toml('topic = "a, b"').topic == toml('topic = ["a", "b"]').topic == ("a", "b")
    assert toml('topic = ""').topic == ()
    assert toml("percentile = [1, 0.5]").percentile == (1.0, 0.5)
    assert not toml('snappy = "false"').snappy
    assert not toml("snappy = false").snappy


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("snappy = 1", "failed parsing snappy 1 in x.toml - must be true or false"),
        ("n = true", "failed parsing n true in x.toml - must not be a boolean"),
        ("n = 1.5", "failed parsing n 1.5 in x.toml - must be a number"),
        ('wait = "60"', 'failed parsing wait "60" in x.toml - parse error'),
        ("name = 3", "failed parsing name 3 in x.toml - must be a string"),
        ("topic = 3", "failed parsing topic 3 in x.toml - "
                      "must be an array, or one string with commas"),
    ],
)  # fmt: skip
def test_toml_errors_name_the_key_and_the_file(content: str, text: str) -> None:
    with pytest.raises(ConfigFileError) as caught:
        toml(content)
    assert str(caught.value) == text


def test_toml_that_is_none() -> None:
    with pytest.raises(ConfigFileError, match=r"^failed to load config file x\.toml - .*line 1"):
        toml("n = \n")


def test_toml_unknown_keys_are_told_with_their_likely_meaning() -> None:
    unknown = read_toml(OPTIONS, "nmae = 1\n[zzzz]\nq = 1\n", "x.toml").unknown
    assert unknown == {"nmae": "name", "zzzz": ""}


def refusal(*arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check(OPTIONS, read_flags(OPTIONS, arguments).given)
    assert not isinstance(caught.value, FlagError)
    return str(caught.value)


def test_limits() -> None:
    assert refusal("-level=0") == refusal("--level=10") == "--level must be [1,9]"
    assert refusal("-shard=1024") == "--shard must be [0,1024)"
    assert refusal("-n=-1") == "--n must be at least 0"
    assert refusal("-wait=0") == "--wait must be more than 0s"
    parse("-level=9", "-shard=1023", "-n=0", "-wait=1ns")


def test_usage_shows_flags_defaults_and_meanings() -> None:
    text = usage(OPTIONS, "nsqpy sample", "{program} does it")
    assert text.startswith("nsqpy sample does it\n\nusage: nsqpy sample [--flag=value ...]")
    assert "  --wait=DURATION             how long (default 1m0s)\n" in text
    assert "  --snappy[=false]            compress (default true)\n" in text
    assert "  --print-topic\n" in text
    assert "[MESSAGE ...]\n" in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_the_sample_file_holds_the_defaults() -> None:
    content = sample_toml(OPTIONS, "heading")
    live = "\n".join(
        line.removeprefix("# ")
        for line in content.splitlines()
        if line.startswith("# ") and "=" in line
    )
    assert toml(live) == Sample()


def test_the_table_escapes_bars_and_tells_what_is_live() -> None:
    table = markdown_table(OPTIONS)
    assert "| `--n` | `n` | `10` | how many \\| at most |" in table
    assert "| `--name` | `name` | `x` |  Can be changed while the daemon runs. |" in table


def test_a_tool_gets_its_options_and_what_follows_them() -> None:
    options = parse_flags(Sample, ["-n=2", "a", "b"], "tool")
    assert (options.limit, options.rest) == (2, ("a", "b"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Strict:
    topic: str = option("", required=True)


@pytest.mark.parametrize(
    ("arguments", "status", "out", "err"),
    [
        (["-h"], 0, "usage: tool [--flag=value ...]\n", ""),
        (["-version"], 0, "tool v1\n", ""),
        (["-x"], 2, "", "tool: flag provided but not defined: -x\n"),
        ([], 1, "", "tool: --topic is required\nrun 'tool --help' for the options\n"),
    ],
)
def test_how_a_tool_ends(
    capsys: pytest.CaptureFixture[str], arguments: Sequence[str], status: int, out: str, err: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_flags(Strict, arguments, "tool", version="tool v1")
    printed = capsys.readouterr()
    assert caught.value.code == status
    assert printed.out.startswith(out)
    assert printed.err.startswith(err)


def test_a_tool_without_arguments_says_that_it_ignores_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert parse_flags(Strict, ["-topic=a", "b", "-c"], "tool") == Strict(topic="a")
    assert capsys.readouterr().err.endswith("b -c\n")
