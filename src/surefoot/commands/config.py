"""``--config FILE.toml``: options from a file, under their own names. What the command line says wins.

Contract: keys are long option names, with '-' or '_', at the top or in the table of their group ([model], [drafting],
[request], [output]). A key that the command does not have, one of another type and one that is there twice are refused by
file and key. An option of the command line also overrules those of the file that say the same thing in another way.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from ..errors import BadRequest

ONE_OF = (("drafter", "draft_model"), ("json_object", "json_schema", "regex", "grammar", "choice"))
"""Options that are one choice."""
_DRAFTING = ("drafter", "draft_model", "num_speculative_tokens", "controller")


class Store(argparse.Action):
    """An option with a value; remembers that the command line gave it."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        setattr(namespace, self.dest, values)
        claim(parser, namespace, self.dest, option_string or self.dest)

    def read(self, value: Any) -> dict[str, Any]:
        """What a file's value sets; :class:`argparse.ArgumentTypeError` tells what it should be."""
        if self.nargs == "?" and isinstance(value, bool):
            return {self.dest: self.const if value else self.default}
        return {self.dest: _convert(self.type, value)}


class Listed(Store):
    """An option that may be repeated."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        before = getattr(namespace, self.dest, None) if self.dest in _given(namespace) else None
        super().__call__(parser, namespace, [*(before or ()), values], option_string)

    def read(self, value: Any) -> dict[str, Any]:
        items = value.items() if isinstance(value, Mapping) else value if isinstance(value, list) else [value]
        return {self.dest: [_convert(self.type, item) for item in items]}


class Flag(Store):
    """An option without a value."""

    def __init__(self, option_strings: list[str], dest: str, default: bool = False, **rest: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, const=True, default=default, **rest)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        super().__call__(parser, namespace, True, option_string)

    def read(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, bool):
            raise argparse.ArgumentTypeError("give true or false")
        return {self.dest: value}


class Switch(Flag):
    """``--x`` and ``--no-x``; neither is a third state."""

    def __init__(self, option_strings: list[str], dest: str, **rest: Any) -> None:
        names = [*option_strings, *("--no-" + name.removeprefix("--") for name in option_strings)]
        super().__init__(names, dest, **{"default": None, **rest})

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        Store.__call__(self, parser, namespace, not (option_string or "").startswith("--no-"), option_string)


class Config(argparse.Action):
    """The option itself."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        if getattr(namespace, self.dest, None) is not None:
            raise BadRequest("--config is given twice; give one file")
        setattr(namespace, self.dest, values)
        found, given = _read(parser, values), _filed(namespace)
        for dest, value in found.items():
            if dest not in _overruled(namespace):
                setattr(namespace, dest, value)
                given.add(dest)


def track(parser: argparse.ArgumentParser) -> None:
    """From here on options of this parser are known to a file. Harmless when done before."""
    for name, action in ((None, Store), ("store", Store), ("append", Listed), ("store_true", Flag)):
        parser.register("action", name, action)


def claim(parser: argparse.ArgumentParser, namespace: argparse.Namespace, dest: str, option: str) -> None:
    """The command line set ``dest``: what a file says of the same thing goes back to its default."""
    other = _given(namespace).setdefault(dest, option)
    if "--speculative-config" in (other, option) and other != option:
        raise BadRequest(f"{option} and {other} say the same thing twice; give one")
    filed = _filed(namespace)
    filed.discard(dest)
    for stale in _overruled(namespace) & filed:
        setattr(namespace, stale, parser.get_default(stale))
        filed.discard(stale)


def _given(namespace: argparse.Namespace) -> dict[str, str]:
    """Destination -> the option of the command line that set it."""
    found: dict[str, str] = vars(namespace).setdefault("_given", {})
    return found


def _filed(namespace: argparse.Namespace) -> set[str]:
    """Destinations that a file set."""
    found: set[str] = vars(namespace).setdefault("_filed", set())
    return found


def _overruled(namespace: argparse.Namespace) -> set[str]:
    """What a file cannot set any more."""
    given = set(_given(namespace))
    for together in ONE_OF:
        if given & set(together):
            given |= set(together)
    if "drafter" in given and getattr(namespace, "drafter", None) == "none":
        given |= set(_DRAFTING)
    return given


def _read(parser: argparse.ArgumentParser, path: str) -> dict[str, Any]:
    """Destination -> value."""
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise BadRequest(f"cannot read the configuration {path} ({error.strerror}); check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path} is not valid TOML ({error}); correct it") from None
    known, tables = _known(parser)
    found: dict[str, Any] = {}
    source: dict[str, str] = {}
    for table, key, value in _entries(content, known, tables, path):
        action, home = known[key.replace("_", "-")]
        if table is not None and table != home:
            raise BadRequest(f"{path}: {key} belongs to [{home}], not to [{table}]; move it there or to the top")
        try:
            new = action.read(value)
        except argparse.ArgumentTypeError as error:
            raise BadRequest(f"{path}: {key} = {str(value)[:60]!r} is not allowed; {error}") from None
        except BadRequest as error:
            raise BadRequest(f"{path}: {error}") from None
        for dest, converted in new.items():
            if dest in source:
                raise BadRequest(f"{path}: {key} and {source[dest]} say the same thing twice; give one")
            found[dest], source[dest] = converted, key
    return found


def _entries(
    content: Mapping[str, Any], known: Mapping[str, Any], tables: set[str], path: str
) -> Iterator[tuple[str | None, str, Any]]:
    """(table, key, value), with keys that are known."""
    for key, value in content.items():
        if key in tables and isinstance(value, Mapping):  # "model" is both a table and a key
            for inner, item in value.items():
                if inner.replace("_", "-") not in known:
                    raise _unknown(f"{path}: unknown key {inner!r} in [{key}]", inner, known)
                yield key, inner, item
        elif key.replace("_", "-") in known:
            yield None, key, value
        else:
            raise _unknown(f"{path}: unknown key {key!r}", key, [*known, *tables])


def _unknown(what: str, key: str, known: Any) -> BadRequest:
    near = get_close_matches(key.replace("_", "-"), known, 1)
    return BadRequest(f"{what}; {f'did you mean {near[0]!r}?' if near else 'see --help for the options'}")


def _known(parser: argparse.ArgumentParser) -> tuple[dict[str, tuple[Store, str]], set[str]]:
    """Key -> the option and its table; and the tables."""
    known: dict[str, tuple[Store, str]] = {}
    for group in parser._action_groups:
        table = (group.title or "").replace(":", " ").split(" ")[0]
        for action in group._group_actions:
            if isinstance(action, Store):
                for name in action.option_strings[:1] if isinstance(action, Switch) else action.option_strings:
                    if name.startswith("--"):
                        known[name[2:]] = action, table
    return known, {table for _, table in known.values()} - {"options"}


def _convert(kind: Callable[[str], Any] | argparse.FileType | str | None, value: Any) -> Any:
    """A value of the file as the option's type; types of our own read values of a file themselves."""
    number = isinstance(value, int) and not isinstance(value, bool)
    for own, fits, wanted in (
        (int, number, "give a whole number"),
        (float, number or isinstance(value, float), "give a number"),
        (None, isinstance(value, str), "give a text"),
        (str, isinstance(value, str), "give a text"),
    ):
        if kind is own:
            if not fits:
                raise argparse.ArgumentTypeError(wanted)
            return float(value) if kind is float else value
    if not callable(kind):
        raise argparse.ArgumentTypeError("give it on the command line")
    try:
        return kind(value)
    except (TypeError, ValueError, AttributeError):
        raise argparse.ArgumentTypeError("give the form that the command line takes") from None
