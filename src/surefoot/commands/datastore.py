"""``surefoot datastore build FOLDER --out PATH`` and ``surefoot datastore info PATH``: texts for the drafter ``retrieval``.

Status 0: built, or whole; 2: bad input, a damaged store or nothing to build from. Files that were left out are told on
standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest
from .common import MODEL

if TYPE_CHECKING:
    from ..drafters.datastore_format import Header

MOST_TOKENS = 20_000_000
_SHOWN = 20
"""Files left out that are listed one by one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    build = actions.add_parser("build", help="make a datastore of a folder's texts", allow_abbrev=False)
    build.add_argument("folder", metavar="FOLDER", help="UTF-8 text files, .npy or .jsonl files with token ids")
    build.add_argument("-m", "--model", default=MODEL, metavar="REF", help=f"the model that will use it (default: {MODEL})")
    build.add_argument("-o", "--out", required=True, metavar="PATH", help="the file to write")
    build.add_argument("--glob", default="*", metavar="PATTERN", help="only files of such names or paths, e.g. '*.md'")
    build.add_argument(
        "--max-tokens",
        type=int,
        default=MOST_TOKENS,
        metavar="N",
        help=f"stop there ({MOST_TOKENS:,}); building takes about 65 bytes of memory a token",
    )
    info = actions.add_parser("info", help="say what a datastore holds", allow_abbrev=False)
    info.add_argument("path", metavar="PATH", help="a datastore")
    info.add_argument("--verify", action="store_true", help="read all of it and compare checksums, whatever its size")
    for action in (build, info):
        action.add_argument("--json", action="store_true", help="print one JSON object")
        action.set_defaults(parser=action)


def run(args: argparse.Namespace) -> int:
    return _build(args) if args.action == "build" else _info(args)


def _build(args: argparse.Namespace) -> int:
    from ..drafters.datastore_build import destination, write
    from ..drafters.datastore_files import gather
    from ..models import fetch, resolve
    from ..text import Codec
    from .terminal import progress

    destination(args.out)  # told before the work
    if not Path(args.folder).expanduser().is_dir():
        raise BadRequest(f"{args.folder} is not a folder; give a folder of text files")
    with progress() as tell:
        codec = Codec.load(fetch(resolve(args.model), tell))
        corpus = gather(args.folder, codec, args.glob, args.max_tokens, tell)
    if not corpus.tokens:
        out = [f"{name}: {reason}" for name, reason in corpus.skipped]
        why = f"{len(out)} left out, the first is {out[0]}" if out else f"{corpus.unmatched} do not match --glob '{args.glob}'"
        raise BadRequest(f"no text was found in {args.folder} ({why}); give a folder with UTF-8 text files")
    _tell_left_out(corpus.skipped, corpus.unmatched, args.glob)
    built = write(
        args.out,
        corpus.documents,
        fingerprint=codec.fingerprint,
        vocab_size=codec.vocab_size,
        model=str(args.model),
        folder=str(args.folder),
    )
    found = {**_entry(built.path, built.header), "files": corpus.files, "unmatched": corpus.unmatched}
    found["skipped"] = [{"file": name, "reason": reason} for name, reason in corpus.skipped]
    if args.json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        print(_line(built.path, built.header))
        print(f"use it: --drafter retrieval:store={built.path}")
    return 0


def _tell_left_out(skipped: list[tuple[str, str]], unmatched: int, glob: str) -> None:
    for name, reason in skipped[:_SHOWN]:
        print(f"left out {name}: {reason}", file=sys.stderr)
    if len(skipped) > _SHOWN:
        print(f"left out {len(skipped) - _SHOWN} more (--json lists them)", file=sys.stderr)
    if unmatched:
        print(f"left out {unmatched} files whose names do not match '{glob}'", file=sys.stderr)


def _info(args: argparse.Namespace) -> int:
    from ..drafters.datastore import SMALL, Datastore

    store = Datastore.open(args.path, verify=args.verify)
    whole = args.verify or store.header.size <= SMALL
    if args.json:
        print(json.dumps({**_entry(store.path, store.header), "verified": whole}, ensure_ascii=False))
    else:
        header = store.header
        print(_line(store.path, header))
        print(
            f"from {header.folder} with the tokenizer of {header.model} ({header.vocab_size} tokens, {header.fingerprint[:12]})"
        )
        print("checksums are right" if whole else "sizes and header are right; --verify reads all of it")
    return 0


def _entry(path: Path, header: Header) -> dict[str, Any]:
    return {"path": str(path), "bytes": header.size, **asdict(header)}


def _line(path: Path, header: Header) -> str:
    from .memory import amount

    documents = f"{header.documents} document{'s' if header.documents != 1 else ''}"
    return f"{path}: {header.tokens} tokens in {documents}, {amount(header.size)}"
