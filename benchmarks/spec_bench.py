"""Every drafter and ``auto`` on the six tasks of Spec-Bench: tokens a pass, speed-up over own plain decoding, equality.

The first turn of the first N questions of each task (of mt_bench: in file order), greedy, by all drafters in turn on one
loaded model (early exits: on the same model, cut); see :mod:`paired` for how they are timed. Tasks take turns, so that none of
them comes first to drafters that learn. Stores of text are each request's own (``--shared``: as shipped); the tables of
``recycle`` and what ``hybrid`` learns of its sources go on from question to question, as they do in use. Questions too long
for the context are cut at their end, before the chat template, and counted. Exit status 1 if an answer differs from that of
plain decoding.

    python benchmarks/spec_bench.py --data question.jsonl [--limit 5] [--length 128] [--drafters suffix,auto] [--repeats 2]
    python benchmarks/spec_bench.py --data question.jsonl --trees      # trees against chains, see :mod:`shapes`

The questions are not part of this repository: ``question.jsonl`` is in data/spec_bench of github.com/hemingkx/Spec-Bench.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paired import PLAIN, Runs, engine, run, summary
from provenance import write
from shapes import Contest, marginal

from surefoot.control.breaker import Breaker
from surefoot.core.cost import CostModel
from surefoot.core.engine import Engine
from surefoot.errors import SurefootError
from surefoot.loader import DRAFTERS, needs, open_target
from surefoot.models import DEFAULT
from surefoot.registry import MERGED
from surefoot.trained import LANES

CHAT = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
WANTED = {"mt_bench": 1.45, "translation": 2.8, "summarization": 1.95, "qa": 1.55, "math_reasoning": 1.6, "rag": 2.5}
"""The tasks, and the speed-up that ``auto`` is to reach on the default model."""
MARGIN = 0.02
"""So far may ``auto`` be behind the best single drafter of a task."""
DISTURBED = 1.05
"""A speed-up this many times tau tells of other load."""
ROWS: dict[str, tuple[str, int | None]] = {
    "ngram": ("ngram", None),
    "ngram-4": ("ngram", 4),
    "suffix": ("suffix", None),
    "suffix-4": ("suffix", 4),
    "recycle": ("recycle", None),
    "recycle-3": ("recycle", 3),
    "lookahead": ("lookahead", None),
    "hybrid": ("hybrid", None),
    "hybrid-tree": ("hybrid", None),
    "auto": ("auto", None),
}
"""Drafter, and a fixed draft length; None: the controller ``auto``. ``hybrid-tree``: the same with three children a node."""
SEVERAL = ("auto", "hybrid", "hybrid-tree")
"""Not single drafters."""
DYNAMIC, LOOKUPS = "dytc", ("ngram", "ngram-4")
"""The row of the dynamic cascade, and those of prompt lookup alone."""
OWN = {
    "suffix": "shared_tokens=0",
    "lookahead": "shared=false",
    "hybrid": "suffix.shared_tokens=0",
    "auto": "suffix.shared_tokens=0",
}
"""Options that keep requests from sharing text."""


def questions(path: Path, limit: int, tasks: Sequence[str]) -> dict[str, list[str]]:
    """The first turn of the first ``limit`` questions of each task."""
    found: dict[str, list[str]] = {task: [] for task in tasks}
    for line in filter(None, path.read_text("utf-8").splitlines()):
        item = json.loads(line)
        task = "mt_bench" if item["category"] in CHAT else item["category"]
        if task in found and len(found[task]) < limit:
            found[task].append(item["turns"][0])
    if empty := [task for task, own in found.items() if not own]:
        raise ValueError(f"it has no question of {', '.join(empty)}")
    return found


def encode(codec: Any, text: str, room: int) -> tuple[list[int], bool]:
    """The prompt, and whether the question was cut to make room."""
    tokens, whole = codec.prompt([{"role": "user", "content": text}]), text
    while len(tokens) > room and text:
        text = text[: min(len(text) - 1, int(len(text) * room / len(tokens)))]
        tokens = codec.prompt([{"role": "user", "content": text}])
    return tokens, text != whole


@dataclass(frozen=True, slots=True)
class Maker:
    """The rows' engines. ``shared``: requests share their text; ``store``: the datastore of ``retrieval``."""

    loaded: Any
    cost: CostModel
    shared: bool
    store: str | None
    heads: Mapping[str, str]
    """Drafter -> folder of its trained head, where that is not the one which comes with the package."""
    own: Mapping[str, str]
    """Rows of one's own: name -> drafter as the loader reads it."""
    cut: Any = None
    """The model once more, cut where drafters leave it early: its passes are a little dearer, so others do not use it."""
    cutting: frozenset[str] = frozenset()
    """Rows that need it."""

    def spec(self, name: str) -> str:
        """The drafter of a row, as the loader reads it. ``auto+HEAD``: what ``auto`` merges, and this head."""
        if name in self.own:
            return self.own[name]
        inner, _, head = name.partition("+")
        drafter = ROWS.get(inner, (inner, None))[0]
        options = [] if self.shared or drafter not in OWN else [OWN[drafter]]
        if head:
            options = [option.replace("suffix.", "") for option in options] + [f"of={MERGED}/{head}"]
            options += [f"{head}.path={self.heads[head]}"] if head in self.heads else []
            return f"hybrid:{','.join(options)}"
        if drafter in self.heads:
            options.append(f"path={self.heads[drafter]}")
        if drafter == "retrieval" and self.store is not None:
            options.append(f"store={self.store}")
        return f"{drafter}:{','.join(options)}"

    def engine(self, name: str) -> Engine:
        if name != "hybrid-tree":
            return engine(
                self.cut if name in self.cutting else self.loaded,
                self.spec(name),
                ROWS.get(name.partition("+")[0], (name, None))[1],
            )
        inner, costs = marginal(self.loaded, self.cost, width=3)
        guarded = Breaker(inner, costs, min_width=self.loaded.model.traits.min_width)
        return engine(self.loaded, self.spec(name), controller=guarded)

    def able(self, names: Sequence[str]) -> list[str]:
        """Those that can be made here; a line about each of the others."""
        found = []
        for name in dict.fromkeys(names):
            drafter = (
                self.own[name].partition(":")[0] if name in self.own else ROWS.get(name, (name, None))[0].partition("+")[0]
            )
            if drafter not in DRAFTERS and drafter != "auto":
                print(f"left out: {name} (no drafter {drafter!r} is registered)")
                continue
            try:
                self.engine(name).close()
                found.append(name)
            except SurefootError as error:
                print(f"left out: {name} ({error})")
        return found

    def build(self, names: Sequence[str]) -> dict[str, Engine]:
        return {PLAIN: engine(self.loaded, "none"), **{name: self.engine(name) for name in names}}


def report(runs: Runs, tasks: dict[str, list[int]], own: Sequence[str] = ()) -> dict[str, Any]:
    """``own``: rows of one's own, which are no single drafters."""
    everything = [i for chosen in tasks.values() for i in chosen]
    rows = {name: {task: summary(runs, name, chosen) for task, chosen in tasks.items()} for name in runs}
    figures: dict[str, Any] = {"rows": {}}
    print(f"| drafter | {' | '.join(tasks)} | mean | drafted tokens kept | answers that differ |")
    print("|---" * (len(tasks) + 4) + "|")
    for name, by_task in rows.items():
        every = summary(runs, name, everything)
        mean = {key: statistics.fmean(r[key] for r in by_task.values()) for key in ("tau", "speedup")}
        figures["rows"][name] = {"by_task": by_task, "mean_of_tasks": mean, "all_prompts_together": every}
        cells = " | ".join(f"{r['tau']:.2f} / {r['speedup']:.2f}x" for r in [*by_task.values(), mean])
        kept = f"{100 * every['drafted_tokens_kept']:.0f} %" if every["drafted_tokens"] else "–"
        print(f"| {name} | {cells} | {kept} | {every['answers_that_differ']} of {every['answers']} |")
    # a pass over a draft is no quicker than a plain one
    figures["faster_than_possible"] = [
        f"{name}, {task}"
        for name, by_task in rows.items()
        for task, r in by_task.items()
        if r["speedup"] > DISTURBED * r["tau"]
    ]
    if figures["faster_than_possible"]:
        print(
            "\ndisturbed, measure again on a quiet machine (speed-up over tau): " + "; ".join(figures["faster_than_possible"])
        )
    if singles := [name for name in runs if name.partition("+")[0] not in (PLAIN, *SEVERAL, *own)]:
        figures["best_single"] = best(rows, singles, list(tasks))
    if static := [name for name in own if name in rows and name != DYNAMIC]:
        figures["cascades"] = cascades(rows, static, list(tasks))
    return figures


def cascades(rows: dict[str, dict[str, Any]], static: Sequence[str], tasks: Sequence[str]) -> dict[str, Any]:
    """The dynamic cascade against the best static one, on the mean of the tasks, and against lookup alone on each."""
    means = {name: statistics.fmean(rows[name][task]["speedup"] for task in tasks) for name in static}
    top = max(means, key=means.__getitem__)
    found: dict[str, Any] = {"best_static": top, "its_mean_speedup": means[top]}
    if DYNAMIC in rows:
        mean = statistics.fmean(rows[DYNAMIC][task]["speedup"] for task in tasks)
        found |= {"mean_speedup": mean, "over_best_static": mean / means[top]}
        print(f"\n{DYNAMIC} on the mean of the tasks: {mean:.3f}x, best static cascade ({top}) {means[top]:.3f}x")
        for lookup in [name for name in LOOKUPS if name in rows]:
            over = {task: rows[DYNAMIC][task]["speedup"] / rows[lookup][task]["speedup"] for task in tasks}
            found[f"over_{lookup}"] = over
            print(f"{DYNAMIC} over {lookup}: " + ", ".join(f"{task} {ratio:.3f}" for task, ratio in over.items()))
    return found


def best(rows: dict[str, dict[str, Any]], singles: Sequence[str], tasks: Sequence[str]) -> dict[str, Any]:
    """Of each task. The best of several noisy figures is a little too good, which is to the disadvantage of ``auto``."""
    found: dict[str, Any] = {}
    print("\n| task | best single drafter | its speed-up | auto | auto over it | wanted of auto |\n|---|---|---|---|---|---|")
    for task in tasks:
        name = max(singles, key=lambda single: rows[single][task]["speedup"])
        top = rows[name][task]["speedup"]
        found[task] = {"drafter": name, "speedup": top, "wanted_of_auto": WANTED[task]}
        if "auto" in rows:
            own = rows["auto"][task]["speedup"]
            near, fast = own >= (1 - MARGIN) * top, own >= WANTED[task]
            found[task] |= {"auto": own, "auto_over_it": own / top, "within_margin": near, "as_wanted": fast}
            auto = f"{own:.2f}x | {own / top:.3f}{'' if near else ' (behind)'} | {WANTED[task]}x{'' if fast else ' (missed)'}"
        else:
            auto = f"– | – | {WANTED[task]}x"
        print(f"| {task} | {name} | {top:.2f}x | {auto} |")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="question.jsonl of Spec-Bench, which you have downloaded")
    parser.add_argument("--model", default=DEFAULT)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--tasks", default=",".join(WANTED))
    parser.add_argument("--limit", type=int, default=5, help="questions of each task (5)")
    parser.add_argument("--length", type=int, default=128, help="new tokens, at most (128)")
    parser.add_argument("--repeats", type=int, default=2, help="timings of each prompt by each drafter; the lower counts (2)")
    parser.add_argument(
        "--drafters", help="of the table's rows, or other names of drafters (with --trees: suffix,recycle,hybrid)"
    )
    parser.add_argument("--head", action="append", default=[], metavar="NAME=FOLDER", help="a trained head of your own")
    parser.add_argument(
        "--row", action="append", default=[], metavar="NAME=SPEC", help="a row of your own, such as v=cascade:of=…"
    )
    parser.add_argument("--store", help="a datastore for the drafter retrieval")
    parser.add_argument("--shared", action="store_true", help="requests share their text, as shipped")
    parser.add_argument("--trees", action="store_true", help="trees against chains instead")
    parser.add_argument("--stored-costs", action="store_true", help="the cost curve of an earlier run; else it is measured now")
    parser.add_argument("--name", help="results/NAME.json (spec_bench, or trees); empty: nothing is written")
    args = parser.parse_args()
    tasks = args.tasks.split(",")
    if unknown := [task for task in tasks if task not in WANTED]:
        parser.error(f"unknown task {unknown[0]!r}; choose of {', '.join(WANTED)}")
    if min(args.limit, args.repeats) < 1 or args.length < 2:
        parser.error("give --limit and --repeats from 1 up, --length from 2 up")
    try:
        asked = questions(args.data, args.limit, tasks)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        parser.error(f"--data {args.data} is not question.jsonl of Spec-Bench ({error})")
    heads = dict(item.split("=", 1) for item in args.head)
    own = dict(item.split("=", 1) for item in args.row)
    names = ([*ROWS] if not args.trees else []) if args.drafters is None else args.drafters.split(",")
    trained = [name for name in LANES if any(name in each.split("+") for each in names)]
    specs = {name: f"{name}:path={heads[name]}" if name in heads else name for name in trained} | own
    early = {name: spec for name, spec in specs.items() if "cut" in needs([spec], args.model)}
    specs = {name: spec for name, spec in specs.items() if name not in early}
    loaded = open_target(args.model, precision=args.precision, **needs(specs.values(), args.model))
    cut = open_target(args.model, precision=args.precision, **needs(early.values(), args.model)) if early else None
    traits = loaded.model.traits
    cost = loaded.calibration.cost(loaded.model, refresh=not args.stored_costs)
    if cut is not None:
        cut.calibration.cost(cut.model, refresh=not args.stored_costs)
    # tasks take turns
    order = [(task, i) for i in range(args.limit) for task in tasks if i < len(asked[task])]
    places = {task: [at for at, (own, _) in enumerate(order) if own == task] for task in tasks}
    room = traits.max_context - args.length - traits.min_width
    prompts, shortened = zip(*(encode(loaded.codec, asked[task][i], room) for task, i in order), strict=True)
    maker = Maker(loaded, cost, args.shared, args.store, heads, own, cut, frozenset(early))
    default = ["suffix", "recycle", "hybrid"] if args.trees else [*ROWS, *(["retrieval"] if args.store else [])]
    wished = [*(args.drafters.split(",") if args.drafters else default), *own]
    if args.trees and (odd := [name for name in wished if name not in DRAFTERS]):
        parser.error(f"--trees takes names of drafters, not {odd[0]!r}; choose of {', '.join(DRAFTERS)}")
    names = maker.able(wished)
    tell = partial(print, file=sys.stderr, flush=True)
    if args.trees:
        contest = Contest(loaded, cost, {name: maker.spec(name) for name in names})
        runs = run(contest.build, prompts, args.length, args.repeats, tell, contest.warmed)
        figures = contest.report(runs, places)
    else:
        runs = run(partial(maker.build, names), prompts, args.length, args.repeats, tell)
        figures = report(runs, places, [*own])
    differ = sum(summary(runs, name, range(len(prompts)))["answers_that_differ"] for name in runs)
    setting = {
        "model": traits.name,
        "dtype": traits.dtype,
        "min_width": traits.min_width,
        "questions": {task: len(own) for task, own in places.items()},
        "questions_cut": sum(shortened),
        "median_prompt_tokens": {task: statistics.median(len(prompts[i]) for i in own) for task, own in places.items()},
        "median_output_tokens": {
            task: statistics.median(len(runs[PLAIN][i][0].tokens) for i in own) for task, own in places.items()
        },
        "length": args.length,
        "repeats": args.repeats,
        "time": "of each prompt the lower of its repeats: other load only ever adds",
        "text_shared_between_requests": args.shared,
        "cost_curve": cost.to_dict(),
    }
    print(f"\nquestions cut to fit: {sum(shortened)} of {len(prompts)}; answers that differ from plain decoding: {differ}")
    name = ("trees" if args.trees else "spec_bench") if args.name is None else args.name
    if name:
        print(f"written: {write(name, setting | figures)}")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
