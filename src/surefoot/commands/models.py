"""``surefoot models``: what is on this machine and what it can do; ``--fetch`` downloads and prepares a model."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import SurefootError
from .memory import amount

_COLUMNS = ("model", "kind", "format", "parameters", "context", "size", "runs on")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fetch", metavar="REF", help="download, convert and measure a model, so that it starts at once")
    parser.add_argument("--backend", default="auto", metavar="NAME", help="with --fetch: auto (default), openvino or torch")
    parser.add_argument("--json", action="store_true", help="print JSON: a list, or with --fetch one object")


def run(args: argparse.Namespace) -> int:
    if args.fetch is not None:
        return _fetch(args)
    entries = listed()
    if args.json:
        print(json.dumps(entries, ensure_ascii=False))
        return 0
    rows = [_COLUMNS, *(_row(entry) for entry in entries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for entry in entries:
        if not entry.get("backends", True):
            print(f"{entry['ref']} runs on nothing; {'; '.join(entry['cannot'])}")
    return 0


def listed() -> list[dict[str, Any]]:
    """Models of this machine, and the packaged ones that are not here yet (``cached`` false)."""
    from ..models import PACKAGED, list_cached

    cached = list_cached()
    found = [_entry(model.ref, model.kind, model.path, model.size) for model in cached]
    here = {model.ref for model in cached}
    found += [
        {"ref": name, "kind": "packaged", "cached": False, "download": entry.wheel_size}
        for name, entry in PACKAGED.items()
        if name not in here
    ]
    return found


def _entry(ref: str, kind: str, path: Path, size: int) -> dict[str, Any]:
    from ..models import describe

    entry: dict[str, Any] = {"ref": ref, "kind": kind, "cached": True, "path": str(path), "size": size}
    try:
        return {**entry, **asdict(describe(path)), "size": size}
    except SurefootError as error:
        return {**entry, "broken": str(error)}


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    if not entry["cached"]:
        size = f"{amount(entry['download'])} to download"
        return entry["ref"], entry["kind"], "", "", "", size, f"not here yet: surefoot models --fetch {entry['ref']}"
    if "broken" in entry:
        return entry["ref"], entry["kind"], "broken", "", "", amount(entry["size"]), entry["broken"]
    parameters = f"{entry['parameters'] / 1e6:,.0f} M" if entry["parameters"] else "?"
    form = f"{entry['format']} {entry['architecture']} {entry['quantisation']}"
    runs = ", ".join(entry["backends"]) or "nothing"
    home = str(Path.home())
    ref = entry["ref"].replace(home, "~", 1) if entry["ref"].startswith(home + "/") else entry["ref"]
    return ref, entry["kind"], form, parameters, str(entry["context"] or "?"), amount(entry["size"]), runs


def _fetch(args: argparse.Namespace) -> int:
    from .. import loader
    from .terminal import progress

    with progress() as tell:
        target = loader.open_target(args.fetch, args.backend, progress=tell)
        cost = target.calibration.cost(target.model)
    traits = target.model.traits
    if args.json:
        entry = _entry(args.fetch, "fetched", target.path, 0)
        print(json.dumps({**entry, "exact": traits.exact, "dtype": traits.dtype}, ensure_ascii=False))
    else:
        rate = 1 / cost(traits.min_width)
        exact = "" if traits.exact else " (not exact: see 'surefoot check')"
        print(f"{args.fetch} is ready: {traits.dtype} on {traits.device}, about {rate:.0f} tokens/s plain{exact}")
        print(target.path)
    return 0
