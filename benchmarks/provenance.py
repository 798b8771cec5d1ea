"""Where a figure comes from: machine, versions, commit, command, date. Every results file carries it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from surefoot import __version__
from surefoot.calibrate import machine

RESULTS = Path(__file__).parent / "results"
_FOLDERS = re.compile(r"(?:^|(?<=[=,]))(?:~|\.{0,2})/(?:[^/,=]+/)*")
"""In front of a file: from the root, from here or from home. Names of drafters, as in of=eagle/suffix, are no paths."""


def _told(argument: str) -> str:
    """Where a file lies on this machine is nobody's business: its name is enough."""
    return _FOLDERS.sub("", argument)


def provenance() -> dict[str, str]:
    def git(*args: str) -> str:
        done = subprocess.run(["git", *args], capture_output=True, text=True, cwd=RESULTS.parent, check=False)
        return done.stdout.strip()

    changed = [line for line in git("status", "--porcelain").splitlines() if not line.endswith(".json")]
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine(),
        "python": sys.version.split()[0],
        "surefoot": __version__,
        "commit": git("rev-parse", "--short", "HEAD") + (" with uncommitted changes" if changed else ""),
        "command": " ".join(["python", *(_told(arg) for arg in sys.argv)]),
    }


def write(name: str, figures: dict[str, Any]) -> Path:
    """Write ``results/<name>.json``."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"provenance": provenance(), **figures}, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return path
