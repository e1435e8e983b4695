"""The file that ``--config`` names, and what several programs check of its values."""

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from nsqpy.config import split_address
from nsqpy.errors import ConfigError
from nsqpy.options import ConfigFileError, Option, TomlValues, read_toml

__all__ = ["check_address", "read_config_file"]


def read_config_file(
    options: Iterable[Option],
    name: str,
    read_file: Callable[[Path], bytes],
    idle_keys: Collection[str],
) -> TomlValues:
    """The settings in the TOML file ``name``; none if that is empty. ``idle_keys`` are known to
    the original and decide nothing.

    Raises:
        ConfigFileError: it cannot be read, or has an unknown key or a value of a wrong kind.
    """
    if not name:
        return TomlValues({})
    path = Path(name)
    try:
        content = read_file(path).decode()
    except OSError as error:
        reason = f"open {path}: {(error.strerror or str(error)).lower()}"
        raise _unreadable(path, reason) from error
    except UnicodeDecodeError as error:
        raise _unreadable(path, f"not UTF-8 at byte {error.start}") from error
    file = read_toml(options, content, str(path))
    for key, close in file.unknown.items():
        if key not in idle_keys:
            hint = f' (did you mean "{close}"?)' if close else ""
            raise _unreadable(path, f'unknown key "{key}"{hint}')
    return file


def _unreadable(path: Path, why: str) -> ConfigFileError:
    return ConfigFileError(str(path), "", f"failed to load config file {path} - {why}")


def check_address(written: str, address: str, *, path: bool = True) -> None:
    """Hold ``host:port`` against the form; with ``path``, a Unix socket's path will do too.

    Raises:
        ConfigError: it names the setting as ``written``.
    """
    try:
        is_path = split_address(address) is None
    except ValueError as error:
        reason = str(error) if path else "must be host:port"
    else:
        if path or not is_path:
            return
        reason = "must be host:port"
    raise ConfigError(written, address, f'{written} "{address}" {reason}')
