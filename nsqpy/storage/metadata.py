"""Which topics and channels exist, and what is paused: ``nsqd.dat``, in the original's form.

The file is replaced whole. It lists durable topics and channels only.
Source: nsqd/nsqd.go, PersistMetadata.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from nsqpy.errors import StorageError
from nsqpy.names import is_valid_name
from nsqpy.storage.files import Files
from nsqpy.version import NSQ_VERSION

__all__ = ["METADATA_FILE", "TopicMetadata", "load_metadata", "save_metadata"]

METADATA_FILE = "nsqd.dat"


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic's name, whether it is paused, and its channels with the same.

    ``configs`` is what ``/channel/config`` set, by channel: a key more than the original has, which
    ignores it.
    """

    name: str
    paused: bool
    channels: dict[str, bool]
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)


def save_metadata(files: Files, directory: str, topics: list[TopicMetadata]) -> None:
    """Replace the file.

    Raises:
        StorageError: the old file stands.
    """
    document = {
        "topics": [
            {
                "name": topic.name,
                "paused": topic.paused,
                "channels": [
                    {"name": name, "paused": paused}
                    | ({"config": topic.configs[name]} if name in topic.configs else {})
                    for name, paused in topic.channels.items()
                ],
            }
            for topic in topics
        ],
        "version": NSQ_VERSION,
    }
    path = f"{directory}/{METADATA_FILE}"
    try:
        files.replace_whole(path, json.dumps(document, separators=(",", ":")).encode())
    except OSError as error:
        raise StorageError.of(path, error) from error


def load_metadata(files: Files, directory: str) -> tuple[list[TopicMetadata], list[str]]:
    """Read the file; no file means no topics. Also returns what was skipped, as warnings.

    Raises:
        StorageError: ``failed to read metadata from …`` or ``failed to parse metadata in …``.
    """
    path = f"{directory}/{METADATA_FILE}"
    try:
        content = files.read_whole(path)
    except FileNotFoundError:
        return [], []
    except OSError as error:
        reason = f"failed to read metadata from {path} - {error.strerror}"
        raise StorageError(path, reason) from error
    try:
        document = json.loads(content)
        return _topics(document)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        reason = f"failed to parse metadata in {path} - {error}"
        raise StorageError(path, reason) from error


def _topics(document: dict[str, Any]) -> tuple[list[TopicMetadata], list[str]]:
    topics, warnings = [], []
    for entry in document.get("topics") or []:
        name = entry["name"]
        if not is_valid_name(name):
            warnings.append(f"skipping creation of invalid topic {name}")
            continue
        channels, configs = {}, {}
        for channel in entry.get("channels") or []:
            if is_valid_name(channel["name"]):
                channels[channel["name"]] = bool(channel.get("paused"))
                if isinstance(channel.get("config"), dict):
                    configs[channel["name"]] = channel["config"]
            else:
                warnings.append(f"skipping creation of invalid channel {channel['name']}")
        topics.append(TopicMetadata(name, bool(entry.get("paused")), channels, configs))
    return topics, warnings
