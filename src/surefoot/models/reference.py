"""From what the user typed to what it names.

Contract: an existing path wins over a packaged name, a packaged name over a hub id. What names nothing raises
:class:`ModelNotFound` with the nearest match and the accepted forms. Nothing is downloaded here.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import BadRequest, ModelNotFound
from .gguf_header import is_gguf
from .packaged import DEFAULT, PACKAGED

Kind = Literal["packaged", "gguf", "openvino", "transformers", "hub"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FORMS = "give a .gguf file, an OpenVINO or transformers folder, a hub id org/name, or " + DEFAULT


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model by name. ``path`` is set for local kinds, ``hub_id`` (and ``hub_file``) for ``kind == "hub"``."""

    kind: Kind
    name: str
    path: Path | None = None
    hub_id: str | None = None
    hub_file: str | None = None
    """One GGUF file of the hub repository, from ``org/name/file.gguf``."""


def resolve(ref: str | os.PathLike[str] | ModelRef) -> ModelRef:
    """What ``ref`` names; raises :class:`ModelNotFound`."""
    if isinstance(ref, ModelRef):
        return ref
    text = os.fspath(ref)
    if not text.strip() or "\0" in text:
        raise BadRequest(f"the model reference is empty: {_FORMS}")
    path = Path(text).expanduser()
    if path.exists():
        return local(path)
    if text.lower() in PACKAGED:
        return ModelRef("packaged", text.lower())
    return _remote(text, path)


def local(path: Path) -> ModelRef:
    """The model at an existing path."""
    if path.name == "openvino_model.xml":
        path = path.parent
    name = path.absolute().name
    if path.is_file():
        if path.suffix.lower() == ".gguf" or is_gguf(path):
            return ModelRef("gguf", path.stem, path)
        raise ModelNotFound(f"{path} is a file but not a GGUF model: {_FORMS}")
    if (path / "openvino_model.xml").is_file():
        return ModelRef("openvino", name, path)
    if (path / "config.json").is_file():
        return ModelRef("transformers", name, path)
    found = sorted(path.glob("*.gguf"))
    if len(found) == 1:
        return ModelRef("gguf", found[0].stem, found[0])
    if found:
        names = ", ".join(file.name for file in found[:4])
        raise ModelNotFound(f"{path} holds {len(found)} GGUF files: name one of them ({names}{', …' if found[4:] else ''})")
    raise ModelNotFound(f"{path} holds no model (no openvino_model.xml, config.json or .gguf): {_FORMS}")


def _remote(text: str, path: Path) -> ModelRef:
    is_path = text.startswith((".", "/", "~")) or "\\" in text
    if not is_path and _HUB_ID.fullmatch(text) and not text.lower().endswith(".gguf"):
        return ModelRef("hub", text, hub_id=text)
    parts = text.split("/")
    if not is_path and len(parts) >= 3 and text.lower().endswith(".gguf") and _HUB_ID.fullmatch("/".join(parts[:2])):
        return ModelRef("hub", text, hub_id="/".join(parts[:2]), hub_file="/".join(parts[2:]))
    raise ModelNotFound(f"no model named {text!r}{_near(text, path)}: {_FORMS}")


def _near(text: str, path: Path) -> str:
    """``" (did you mean …?)"`` from the packaged names and the files beside the missing path."""
    names = {name: name for name in PACKAGED}
    with contextlib.suppress(OSError):
        names.update({entry.name.lower(): str(path.parent / entry.name) for entry in path.parent.iterdir()})
    wanted = text.lower() if len(path.parts) == 1 else path.name.lower()
    close = difflib.get_close_matches(wanted, names, n=1, cutoff=0.6)
    # A short form such as "smollm2" shares too few letters for the measure above.
    close = close or [name for name in PACKAGED if len(text) >= 4 and name.startswith(text.lower())]
    return f" (did you mean {names[close[0]]!r}?)" if close else ""
