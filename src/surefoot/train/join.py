"""Several folders of captured text as one: what was captured at different times, with different seeds, is trained on together.

python -m surefoot.train.join OUT FOLDER FOLDER [FOLDER ...]

Shards are linked where the file system allows, else copied. ``set.json`` then tells which captures the text is of.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import BadRequest, SurefootError
from .shards import FACTS_FILE, Shards, shard_path

_SAME = ("target", "taps")
"""Facts in which all must agree."""


def join(out: Path, folders: Sequence[Path]) -> int:
    """Documents in ``out``, which must be new or empty. Raises :class:`BadRequest` where the folders do not go together."""
    if len(folders) < 2:
        raise BadRequest("give two folders of captured text or more")
    if out.exists() and any(out.iterdir()):
        raise BadRequest(f"{out} is not empty; give a new folder")
    read = [Shards(folder) for folder in folders]
    for folder, shards in zip(folders[1:], read[1:], strict=True):
        for key in _SAME:
            if shards.facts.get(key) != read[0].facts.get(key):
                raise BadRequest(
                    f"{folder} and {folders[0]} differ in {key}; only text of one target with the same taps is joined"
                )
    out.mkdir(parents=True, exist_ok=True)
    number = 0
    for folder in folders:
        for path in sorted(folder.glob("shard-*.safetensors")):
            place = shard_path(out, number)
            try:
                os.link(path, place)
            except OSError:
                shutil.copyfile(path, place)
            number += 1
    facts: dict[str, Any] = {key: read[0].facts[key] for key in _SAME}
    facts["settings"] = {
        f"part {i}": f"{len(shards)} documents; {_told(shards.facts.get('settings', {}))}" for i, shards in enumerate(read, 1)
    }
    facts["prompts"] = sum(int(shards.facts.get("prompts", 0)) for shards in read)
    (out / FACTS_FILE).write_text(json.dumps(facts, indent=1), "utf-8")
    return sum(len(shards) for shards in read)


def _told(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items() if value is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("folders", nargs="+", type=Path)
    args = parser.parse_args()
    try:
        print(f"{join(args.out, args.folders)} documents in {args.out}")
    except SurefootError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
