"""Dataclass fields to Go-style flags, TOML keys, ``--help``, a sample file and the docs' table.

An option is stated once, as a field of a frozen dataclass; everything else derives from it::

    @dataclass(frozen=True, slots=True, kw_only=True)
    class TailOptions:
        topic: tuple[str, ...] = option((), required=True, help="topic to follow (repeatable)")
        limit: int = option(0, flag="n", minimum=0, help="stop after this many; 0 = never")
        wait_ns: int = option("5s", parse=duration_ns, above=0, help="how long to wait")
        messages: tuple[str, ...] = positional("MESSAGE", help="what to publish")

    def main(arguments: Sequence[str], program: str) -> int:
        options = parse_flags(TailOptions, arguments, program, intro=_INTRO, version=_VERSION)
        if options.limit and not options.topic:
            return refuse(ConfigError("--topic", "", "--topic is required"), program)

The field's name gives the flag (``wait_ns`` is ``--wait``) and the key; its default gives the
type: bool, int, float, str, or a tuple for a repeated flag. ``parse`` names another type.
A tool prints and exits through ``parse_flags``; a daemon, which also reads a file, puts its
settings together from ``read_flags``, ``read_toml``, ``check`` and ``values``.

Source for the syntax and its error texts: Go's flag package, as the reference daemons use it.
"""

import difflib
import json
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from nsqpy.clock import MILLISECOND
from nsqpy.errors import ConfigError
from nsqpy.scalars import (
    boolean,
    duration_ns,
    format_duration,
    in_int64,
    integer,
    number,
    one_of,
    text,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "ConfigFileError",
    "FlagError",
    "FlagValues",
    "Given",
    "Option",
    "TomlValues",
    "boolean",
    "check",
    "duration_ns",
    "format_duration",
    "help_hint",
    "integer",
    "markdown_table",
    "number",
    "one_of",
    "option",
    "options_of",
    "parse_flags",
    "positional",
    "read_flags",
    "read_toml",
    "refuse",
    "sample_toml",
    "text",
    "usage",
    "values",
]


class FlagError(ConfigError):
    """The command line cannot be understood. The process ends with status 2, as Go's does."""


class ConfigFileError(ConfigError):
    """The configuration file cannot be read, or holds what it should not."""


# What an option holds: whatever its parser makes of the text.
Value: TypeAlias = Any

# --- declaring ---

_METAVARS: Mapping[object, str] = {integer: "N", number: "X", duration_ns: "DURATION"}
_PARSERS: Mapping[type, Callable[[str], Value]] = {
    bool: boolean,
    int: integer,
    float: number,
    str: text,
    tuple: text,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting: its names, its type, its limits and what it means.

    ``key`` is empty for what only the command line has; ``flag`` is empty for positional
    arguments. ``bare`` flags need no value and take one only after ``=``. ``live`` can be
    changed while the daemon runs. ``pending`` is for a setting of the original whose feature
    is not built: setting it has no effect but a warning.
    """

    name: str = ""
    flag: str = ""
    key: str = ""
    parse: Callable[[str], Value]
    show: Callable[[Value], str]
    default: Value
    default_text: str | None = None
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    below: float | None = None
    help: str = ""
    metavar: str = ""
    group: str = ""
    repeat: bool = False
    split: bool = False
    bare: bool = False
    required: bool = False
    live: bool = False
    pending: bool = False

    def limits_error(self, value: Value) -> str:
        """Why ``value`` (one element of a list) is out of bounds, or an empty string."""
        lower = self.minimum if self.minimum is not None else self.above
        upper = self.maximum if self.maximum is not None else self.below
        if (
            (self.minimum is None or value >= self.minimum)
            and (self.above is None or value > self.above)
            and (self.maximum is None or value <= self.maximum)
            and (self.below is None or value < self.below)
        ):
            return ""
        if lower is not None and upper is not None:
            opening = "[" if self.minimum is not None else "("
            closing = "]" if self.maximum is not None else ")"
            return f"must be {opening}{self.show(lower)},{self.show(upper)}{closing}"
        if lower is not None:
            return f"must be {'at least' if self.above is None else 'more than'} {self.show(lower)}"
        return f"must be {'at most' if self.below is None else 'less than'} {self.show(upper)}"

    def parse_all(self, raw: str) -> tuple[Value, ...]:
        """The values in one flag argument: one, or several if the option splits at commas."""
        return tuple(self.parse(part) for part in (raw.split(",") if self.split else (raw,)))


def option(
    default: Value,
    *,
    flag: str | None = None,
    key: str | None = None,
    parse: Callable[[str], Value] | None = None,
    show: Callable[[Value], str] | None = None,
    bare: bool | None = None,
    **facts: Value,
) -> Value:
    """A dataclass field that is also a flag and a TOML key; ``facts`` are fields of ``Option``.

    A text ``default`` goes through ``parse``, so that a duration can be written as users do.
    A tuple as default makes the flag repeatable.
    """
    parser = parse or _PARSERS[type(default)]
    value = parser(default) if isinstance(default, str) else default
    facts.setdefault("metavar", _METAVARS.get(parser, "TEXT"))
    declared = Option(
        flag=flag if flag is not None else "?",
        key=key if key is not None else "?",
        parse=parser,
        show=show or (format_duration if parser is duration_ns else _show),
        default=value,
        repeat=isinstance(value, tuple),
        bare=parser is boolean if bare is None else bare,
        **facts,
    )
    return field(default=value, metadata={"option": declared})


def positional(metavar: str, help: str = "") -> Value:
    """A field (``tuple[str, ...]``) that takes what follows the flags."""
    return option((), flag="", key="", metavar=metavar, help=help)


def _show(value: Value) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case Enum():
            return str(value.value)
        case tuple():
            return ",".join(_show(item) for item in value)
        case _:
            return str(value)


def options_of(cls: "type[DataclassInstance]") -> tuple[Option, ...]:
    """The options that a dataclass declares, in its order, names filled in."""
    found = []
    for declared in fields(cls):
        if (known := declared.metadata.get("option")) is None:
            continue
        base = declared.name.removesuffix("_ns").removesuffix("_bytes")
        flag = base.replace("_", "-") if known.flag == "?" else known.flag
        key = flag.replace("-", "_") if known.key == "?" else known.key
        found.append(replace(known, name=declared.name, flag=flag, key=key))
    return tuple(found)


# --- reading ---


@dataclass(frozen=True, slots=True)
class Given:
    """A value that somebody set, and the option's name as it was written there."""

    value: Value
    written: str


@dataclass(frozen=True, slots=True)
class FlagValues:
    """A parsed command line: by field name; what follows the flags; whether help was asked for."""

    given: dict[str, Given]
    rest: tuple[str, ...] = ()
    help_wanted: bool = False


def read_flags(options: Iterable[Option], arguments: Sequence[str]) -> FlagValues:
    """Parse a command line as Go's flag package does.

    The first argument that is no flag, or ``--``, ends the flags.

    Raises:
        FlagError: with Go's text, such as ``flag provided but not defined: -x``.
    """
    by_flag = {known.flag: known for known in options if known.flag}
    given: dict[str, Given] = {}
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        if len(argument) < 2 or not argument.startswith("-"):
            break
        position += 1
        if argument == "--":
            break
        name, equals, raw = argument.removeprefix("-").removeprefix("-").partition("=")
        if not name or name.startswith("-"):
            raise FlagError(argument, "", f"bad flag syntax: {argument}")
        known = by_flag.get(name)
        if known is None:
            if name in ("h", "help"):
                return FlagValues(given, tuple(arguments[position:]), help_wanted=True)
            raise _undefined(name, by_flag)
        if not equals and known.bare:
            raw = "true"
        elif not equals:
            if position == len(arguments):
                raise FlagError(f"-{name}", "", f"flag needs an argument: -{name}")
            raw = arguments[position]
            position += 1
        given[known.name] = Given(_flag_value(known, raw, given.get(known.name)), f"--{name}")
    return FlagValues(given, tuple(arguments[position:]))


def _undefined(name: str, known: Iterable[str]) -> FlagError:
    reason = f"flag provided but not defined: -{name}"
    if close := difflib.get_close_matches(name, list(known), n=1):
        reason += f" (did you mean -{close[0]}?)"
    return FlagError(f"-{name}", "", reason)


def _flag_value(known: Option, raw: str, earlier: Given | None) -> Value:
    try:
        parsed = known.parse_all(raw)
    except ValueError as error:
        kind = "boolean value" if known.parse is boolean else "value"
        place = "" if known.parse is boolean else "flag "
        reason = f'invalid {kind} "{raw}" for {place}-{known.flag}: {error}'
        raise FlagError(f"-{known.flag}", raw, reason) from None
    if not known.repeat:
        return parsed[0]
    return parsed if earlier is None else (*earlier.value, *parsed)


@dataclass(frozen=True, slots=True)
class TomlValues:
    """A parsed file: by field name; and the keys that are no option, with their likely meaning."""

    given: dict[str, Given]
    unknown: dict[str, str] = field(default_factory=dict)


def read_toml(options: Iterable[Option], content: str, source: str) -> TomlValues:
    """Read settings from TOML; ``source`` is the file's name for messages.

    Durations are strings, or integers of milliseconds; integers may be strings; lists are
    arrays or one comma-separated string; booleans are booleans or strings. The original turns
    ``snappy = 1`` into off: integers for booleans are refused here.

    Raises:
        ConfigFileError: not TOML, or a value that its option cannot take.
    """
    try:
        table = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        reason = f"failed to load config file {source} - {error}"
        raise ConfigFileError(source, "", reason) from error
    by_key = {known.key: known for known in options if known.key}
    aliases = {known.flag.replace("-", "_"): known.key for known in by_key.values()}
    given: dict[str, Given] = {}
    unknown: dict[str, str] = {}
    for key, value in table.items():
        if (known := by_key.get(key)) is None:
            close = difflib.get_close_matches(key, [*by_key, *aliases], n=1)
            unknown[key] = aliases.get(close[0], close[0]) if close else ""
            continue
        try:
            given[known.name] = Given(_toml_value(known, value), f"{key} (in {source})")
        except ValueError as error:
            reason = f"failed parsing {key} {_show_toml(value)} in {source} - {error}"
            raise ConfigFileError(key, value, reason) from None
    return TomlValues(given, unknown)


def _toml_value(known: Option, value: object) -> Value:
    if not known.repeat:
        return _toml_scalar(known, value)
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")] if value else []
    if not isinstance(value, list):
        raise ValueError("must be an array, or one string with commas")
    return tuple(_toml_scalar(known, item) for item in value)


def _toml_scalar(known: Option, value: object) -> Value:
    match value:
        case str():
            return known.parse(value)
        case bool() if known.bare:
            return known.parse("true" if value else "false")
        case bool():
            raise ValueError("must not be a boolean")
        case int() if known.parse is duration_ns:
            return in_int64(value * MILLISECOND)
        case int() if known.parse is integer:
            return in_int64(value)
        case int() | float() if known.parse is number:
            return float(value)
        case _ if known.bare:
            raise ValueError("must be true or false")
        case _ if known.parse is duration_ns:
            raise ValueError('must be a string such as "250ms", or an integer of milliseconds')
        case _ if known.parse in (integer, number):
            raise ValueError("must be a number")
        case _:
            raise ValueError("must be a string")


def _show_toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else _show(value)


def check(options: Iterable[Option], given: Mapping[str, Given]) -> None:
    """Hold what was given against the limits, and see that nothing required is missing.

    Raises:
        ConfigError: such as ``--max-deflate-level must be [1,9]``.
    """
    for known in options:
        setting = given.get(known.name)
        if setting is None:
            if known.required:
                raise ConfigError(f"--{known.flag}", "", f"--{known.flag} is required")
            continue
        for item in setting.value if known.repeat else (setting.value,):
            if reason := known.limits_error(item):
                raise ConfigError(setting.written, item, f"{setting.written} {reason}")


def values(*layers: Mapping[str, Given]) -> dict[str, Value]:
    """Keyword arguments for the dataclass; a later layer beats an earlier one."""
    return {name: setting.value for layer in layers for name, setting in layer.items()}


# --- the command line of a tool ---

_Options = TypeVar("_Options", bound="DataclassInstance")


def help_hint(program: str) -> str:
    return f"run '{program} --help' for the options"


def refuse(error: ConfigError, program: str) -> int:
    """Say on stderr what is wrong, in one line, and where help is; return the exit status."""
    sys.stderr.write(f"{program}: {error}\n{help_hint(program)}\n")
    return 2 if isinstance(error, FlagError) else 1


def parse_flags(
    cls: type[_Options],
    arguments: Sequence[str],
    program: str,
    *,
    intro: str = "",
    version: str = "",
) -> _Options:
    """The whole command line of a tool: parse, check, help.

    ``program`` is how the user called it, ``intro`` the first lines of the help (``{program}``
    is filled in), ``version`` what ``-version`` prints; without it there is no such flag.

    Raises:
        SystemExit: 0 after help or version, 2 for a bad flag, 1 for a bad or missing value;
            what there is to say has been said.
    """
    options = options_of(cls)
    flags = [*options, *((_VERSION_FLAG,) if version else ())]
    rest_field = next((known.name for known in options if not known.flag), None)
    try:
        line = read_flags(flags, arguments)
        if line.help_wanted:
            sys.stdout.write(usage(flags, program, intro))
            raise SystemExit(0)
        if _VERSION_FLAG.name in line.given and line.given.pop(_VERSION_FLAG.name).value:
            sys.stdout.write(f"{version}\n")
            raise SystemExit(0)
        if rest_field is not None and line.rest:
            line.given[rest_field] = Given(line.rest, "arguments")
        elif line.rest:
            sys.stderr.write(f"{program}: ignored, as after every argument that is no flag: ")
            sys.stderr.write(f"{' '.join(line.rest)}\n")
        check(options, line.given)
    except ConfigError as error:
        raise SystemExit(refuse(error, program)) from None
    return cls(**values(line.given))


_VERSION_FLAG = Option(
    name="-version",
    flag="version",
    parse=boolean,
    show=_show,
    default=False,
    bare=True,
    help="print the version and exit",
)


_HELP_WIDTH = 88
_HELP_COLUMN = 30


def usage(options: Iterable[Option], program: str, intro: str = "") -> str:
    """The text of ``--help``: intro, synopsis, options by group with their defaults."""
    listed = list(options)
    rest = [known for known in listed if not known.flag]
    lines = [intro.strip().replace("{program}", program), ""] if intro else []
    synopsis = "".join(f" [{known.metavar} ...]" for known in rest)
    lines += [f"usage: {program} [--flag=value ...]{synopsis}"]
    for group in dict.fromkeys(known.group for known in listed):
        lines += ["", f"{group or 'flags'}:"]
        for known in listed:
            if known.group == group:
                lines += _usage_lines(known)
    return "\n".join(lines) + "\n"


def _usage_lines(known: Option) -> list[str]:
    value = f"={known.metavar}"
    if known.bare:
        value = "[=false]" if known.default is True else ""
    name = f"  --{known.flag}{value}" if known.flag else f"  {known.metavar} ..."
    shown = known.show(known.default) if known.default_text is None else known.default_text
    if known.flag and shown and not (known.bare and known.default is False):
        meaning = f"{known.help} (default {shown})"
    else:
        meaning = known.help
    if known.pending:
        meaning += " [not supported yet]"
    wrapped = textwrap.wrap(meaning, _HELP_WIDTH - _HELP_COLUMN, break_on_hyphens=False)
    indent = " " * _HELP_COLUMN
    if len(name) > _HELP_COLUMN - 2:
        return [name, *(indent + line for line in wrapped)]
    first = wrapped[0] if wrapped else ""
    return [f"{name:<{_HELP_COLUMN}}{first}".rstrip(), *(indent + line for line in wrapped[1:])]


# --- the sample file and the docs ---


def sample_toml(options: Iterable[Option], heading: str) -> str:
    """A file in which every key stands commented out with its default."""
    keyed = [known for known in options if known.key]
    lines = [f"# {line}".rstrip() for line in heading.strip().splitlines()]
    for group in dict.fromkeys(known.group for known in keyed):
        lines += ["", f"##### {group} #####"]
        for known in keyed:
            if known.group == group:
                lines += ["", *(f"## {line}" for line in textwrap.wrap(_meaning(known), 90))]
                lines.append(f"# {known.key} = {_toml_literal(known)}")
    return "\n".join(lines) + "\n"


def _meaning(known: Option) -> str:
    default = f" (default {known.default_text})" if known.default_text else ""
    return f"{known.help}{default}" + (" [not supported yet]" if known.pending else "")


def _toml_literal(known: Option) -> str:
    if isinstance(known.default, tuple):
        return json.dumps(list(known.default))
    shown = known.show(known.default)
    plain = known.parse in (boolean, integer, number)
    return shown if plain else json.dumps(shown, ensure_ascii=False)


def markdown_table(options: Iterable[Option]) -> str:
    """One row per option: flag, key, default, meaning."""
    rows = ["| Flag | Key | Default | Meaning |", "| --- | --- | --- | --- |"]
    for known in options:
        key = f"`{known.key}`" if known.key else ""
        shown = known.show(known.default)
        default = known.default_text or (f"`{shown}`" if shown else "none")
        live = " Can be changed while the daemon runs." if known.live else ""
        meaning = f"{_meaning(replace(known, default_text=None))}{live}".replace("|", "\\|")
        rows.append(f"| `--{known.flag}` | {key} | {default} | {meaning} |")
    return "\n".join(rows) + "\n"
