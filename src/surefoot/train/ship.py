"""Puts trained heads among those that come with the package: half-precision copies, and the index that names them.

python -m surefoot.train.ship WEIGHTS --model smollm2-135m-instruct --auto hydra FOLDER [FOLDER ...]
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ..errors import BadRequest, SurefootError
from ..models import fetch, resolve
from ..models.cache import content, label
from ..trained import KINDS, LANES

_CARDS = ("card.json", "README.md")
_PATHS = re.compile(r"(?<![\w.~/])/(?:[\w.~-]+/)+(?=[\w.~-])")
"""The folders of absolute paths."""


def ship(
    folders: Sequence[Path | tuple[str, Path]], weights: Path, model: Path, auto: Sequence[str] = (), taps: Sequence[int] = ()
) -> Path:
    """Copies the heads for ``model`` under ``weights`` and writes ``index.json`` there; heads already there stay.

    A folder may come with the drafter that it is for, where a kind of head has several (``early_exit_deep``).
    ``auto``: the drafters that ``auto`` asks; ``taps``: the activations that the model is always loaded with.
    """
    drafters = {KINDS.get(name, name): name for name in reversed(LANES)}
    index_file = weights / "index.json"
    index = json.loads(index_file.read_text("utf-8")) if index_file.is_file() else {}
    own = index.setdefault(content(model), {"model": label(model), "heads": {}})
    for given in folders:
        wanted, folder = given if isinstance(given, tuple) else (None, given)
        try:
            card = json.loads((folder / "card.json").read_text("utf-8"))
        except (OSError, ValueError):
            raise BadRequest(f"{folder} holds no card.json; train the head with surefoot train") from None
        if card["target"].get("content") != content(model):
            raise BadRequest(f"{folder}: the head is for {card['target'].get('name')!r}, another model than {label(model)!r}")
        name = drafters[card["kind"]] if wanted is None else wanted
        if name not in LANES or KINDS.get(name, name) != card["kind"]:
            raise BadRequest(
                f"{folder}: a head of kind {card['kind']!r} is for drafter {drafters[card['kind']]!r}, not {name!r}"
            )
        place = weights / label(model) / name
        place.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / "config.json", place / "config.json")
        for part in _CARDS:  # where the folders of a run were is nobody else's business
            (place / part).write_text(_PATHS.sub("", (folder / part).read_text("utf-8")), "utf-8")
        for file in sorted(folder.glob("*.safetensors")):
            tensors = load_file(file)
            halved = {key: x.to(torch.float16) if x.dtype == torch.float32 else x for key, x in tensors.items()}
            save_file({key: x.contiguous() for key, x in halved.items()}, place / file.name)
        own["heads"][name] = f"{label(model)}/{name}"
    if missing := sorted(set(auto) - set(own["heads"])):
        raise BadRequest(f"auto cannot ask {missing[0]!r}: no such head is there; give its folder")
    own |= {"auto": list(auto), "taps": sorted(taps)}
    index_file.write_text(json.dumps(index, indent=1, sort_keys=True) + "\n", "utf-8")
    return index_file


def _folder(text: str) -> Path | tuple[str, Path]:
    name, equals, folder = text.partition("=")
    return (name, Path(folder)) if equals and name in LANES else Path(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("folders", nargs="*", type=_folder, help="folder of a head, or DRAFTER=FOLDER")
    parser.add_argument("--model", required=True)
    parser.add_argument("--auto", action="append", default=[])
    parser.add_argument("--taps", type=int, nargs="*", default=[])
    args = parser.parse_args()
    try:
        print(ship(args.folders, args.weights, fetch(resolve(args.model)), args.auto, args.taps))
    except SurefootError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
