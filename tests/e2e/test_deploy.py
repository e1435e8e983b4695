"""The files in ``deploy/`` use flags that the daemon knows."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_flags_in_deploy_are_documented() -> None:
    usage = subprocess.run(
        [sys.executable, "-m", "nsqpy", "nsqd", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    known = set(re.findall(r"--?([a-z][a-z0-9-]+)", usage.stdout + usage.stderr))
    for name in ("Containerfile", "nsqd.service"):
        lines = (ROOT / "deploy" / name).read_text().splitlines()
        commands = [line for line in lines if line.startswith(("CMD ", "ExecStart="))]
        assert commands, name
        used = set(re.findall(r"--([a-z-]+)=", "".join(commands)))
        assert used <= known, (name, used - known)
