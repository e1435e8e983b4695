"""The tree keeps to the rules of ``tests/architecture.py``, and the checker catches each breach."""

from pathlib import Path

import pytest

from tests.architecture import MAY_IMPORT, layer_of, violations

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("nsqpy", "nsqpy_lookupd", "nsqpy_admin")

# A tree that breaks no rule, with each kind of thing that is allowed.
LAWFUL = {
    "nsqpy/__init__.py": "__all__ = ['Consumer']\nfrom nsqpy.client.consumer import Consumer\n",
    "nsqpy/clock.py": "__all__ = []\nimport time\nnow = time.monotonic_ns()\n",
    "nsqpy/names.py": "__all__ = []\nimport re\nimport os\nx = os.path.basename('/a')\n",
    "nsqpy/cli.py": (
        "__all__ = []\nfrom nsqpy.names import x\n"
        "def main():\n    from nsqpy.daemon.app import run\n    return run()\n"
    ),
    "nsqpy/__main__.py": "from nsqpy.cli import main\nmain()\n",
    "nsqpy/protocol/__init__.py": "",
    "nsqpy/protocol/frames.py": "__all__ = []\nfrom nsqpy import names\n",
    "nsqpy/storage/files.py": "__all__ = []\nimport os\nfd = os.open('x', os.O_RDONLY)\n",
    "nsqpy/storage/log.py": (
        "__all__ = []\nfrom pathlib import PurePath\nfrom nsqpy.storage.files import fd\n"
        "def make(files, path: PurePath):\n    files.mkdir(path)\n"
    ),
    "nsqpy/core/channel.py": (
        "__all__ = []\nfrom typing import TYPE_CHECKING\nimport random\n"
        "from nsqpy.core.topic import Topic\nfrom nsqpy.storage.log import make\n"
        "draw = random.Random(7)\nmessage = channel.touch()\n"
    ),
    "nsqpy/core/topic.py": (
        "__all__ = []\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from nsqpy.core.channel import Channel\n"
    ),
    "nsqpy/daemon/app.py": "__all__ = []\nimport asyncio\nfrom nsqpy.core import topic\n",
    "nsqpy/client/consumer.py": "__all__ = []\nimport asyncio\nfrom nsqpy.protocol import frames\n",
    "nsqpy/spark/source.py": "__all__ = []\nimport pyspark\nfrom nsqpy.client import consumer\n",
    "nsqpy_lookupd/registry.py": "__all__ = []\nfrom nsqpy.names import x\n",
}


def test_the_tree_keeps_to_the_rules() -> None:
    tree = {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert "nsqpy/clock.py" in tree
    found = violations(tree)
    assert found == [], "\n".join(found)


def test_every_module_has_a_layer() -> None:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            assert name == "nsqpy/__init__.py" or layer_of(name) in MAY_IMPORT, name


def test_a_lawful_tree_has_no_violations() -> None:
    assert violations(LAWFUL) == []


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        # Arrows.
        ("nsqpy/protocol/bad.py", "from nsqpy.core import topic", "P may not import C"),
        ("nsqpy/protocol/bad.py", "import nsqpy.core.topic", "P may not import C"),
        ("nsqpy/protocol/bad.py", "from ..core.topic import x", "P may not import C"),
        ("nsqpy/names2.py", "from nsqpy.protocol.frames import x", "B may not import P"),
        ("nsqpy/storage/bad.py", "from nsqpy.protocol import frames", "S may not import P"),
        ("nsqpy/core/bad.py", "from nsqpy.daemon import app", "C may not import D"),
        ("nsqpy/client/bad.py", "from nsqpy.core import topic", "L may not import C"),
        ("nsqpy/daemon/bad.py", "from nsqpy.client import consumer", "D may not import L"),
        ("nsqpy/tools/bad.py", "from nsqpy.core.topic import x", "T may not import C"),
        ("nsqpy_lookupd/bad.py", "from nsqpy.daemon import app", "K may not import D"),
        (
            "nsqpy/protocol/bad.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import nsqpy.core.topic",
            "P may not import C",
        ),
        ("nsqpy/core/bad.py", "def f():\n    from nsqpy.daemon import app", "C may not import D"),
        ("nsqpy/tools/bad.py", "from nsqpy import Consumer", "name the module that defines it"),
        ("nsqpy/__main__.py", "from nsqpy.daemon.app import run", "inside its own subcommand"),
        # Purity.
        ("nsqpy/core/bad.py", "import asyncio", "C may not use asyncio"),
        ("nsqpy/names2.py", "from asyncio import sleep", "B may not use asyncio.sleep"),
        ("nsqpy/protocol/bad.py", "import socket", "P may not use socket"),
        ("nsqpy/storage/bad.py", "from urllib.request import urlopen", "S may not use urllib"),
        ("nsqpy/storage/bad.py", "import time", "S may not use time"),
        ("nsqpy/core/bad.py", "from time import monotonic_ns", "C may not use time"),
        ("nsqpy/names2.py", "import time\nx = time.time()", "B may not read a clock"),
        ("nsqpy/names2.py", "from time import time as t\nx = t()", "B may not read a clock"),
        (
            "nsqpy/core/bad.py",
            "from datetime import datetime\nx = datetime.now()",
            "C may not read a clock (datetime.datetime.now)",
        ),
        ("nsqpy/core/bad.py", "import random\nx = random.random()", "C may not draw unseeded"),
        ("nsqpy/core/bad.py", "import random\nx = random.Random()", "C may not draw unseeded"),
        (
            "nsqpy/core/bad.py",
            "from random import choice\nx = choice([1])",
            "may not draw unseeded",
        ),
        ("nsqpy/core/bad.py", "import secrets", "C may not use secrets"),
        ("nsqpy/protocol/bad.py", "x = open('a')", "P may not touch files (open)"),
        ("nsqpy/storage/bad.py", "import os", "S may not use os"),
        ("nsqpy/names2.py", "import os\nx = os.listdir()", "B may not touch files (os.listdir)"),
        ("nsqpy/storage/bad.py", "from pathlib import Path", "S may not use pathlib.Path"),
        (
            "nsqpy/names2.py",
            "from pathlib import Path\nx = Path('a').read_text()",
            "B may not touch files",
        ),
        # The rest.
        ("nsqpy/daemon/bad.py", "import pyspark", "pyspark outside nsqpy/spark"),
        ("nsqpy/daemon/bad.py", "x = 1  # FIX" + "ME later", "FIX" + "ME"),
    ],
)
def test_a_breach_is_caught(path: str, source: str, expected: str) -> None:
    tree = LAWFUL | {path: "__all__ = []\n" + source}
    (found,) = violations(tree)
    assert found.startswith(f"{path}:")
    assert expected in found


def test_a_missing_export_list_is_caught() -> None:
    assert violations(LAWFUL | {"nsqpy/core/bad.py": "x = 1"}) == [
        "nsqpy/core/bad.py:1: no __all__"
    ]


def test_a_cycle_is_caught() -> None:
    tree = LAWFUL | {
        "nsqpy/core/one.py": "__all__ = []\nfrom nsqpy.core.two import x",
        "nsqpy/core/two.py": "__all__ = []\ndef f():\n    from nsqpy.core.three import x",
        "nsqpy/core/three.py": "__all__ = []\nimport nsqpy.core.one",
    }
    (found,) = violations(tree)
    assert set(found.removeprefix("cycle: ").split(" -> ")) == {
        "nsqpy/core/one.py",
        "nsqpy/core/two.py",
        "nsqpy/core/three.py",
    }
