"""Strict reading of YAML into frozen dataclasses: nothing is guessed, converted or ignored."""

import difflib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from millisecond.data.files import read_text

T = TypeVar("T")

MAX_TEXT = 1 << 20  # characters; a configuration has two thousand
MAX_SHOWN = 60  # characters of a wrong value in a message
LARGEST = 2**31 - 1  # whole number: the kernels count in 32 bits


class ConfigError(ValueError):
    """A configuration that cannot be used; the message starts with the path of the key."""

    def __init__(self, key: str, problem: str):
        super().__init__(f"{key}: {problem}")
        self.key, self.problem = key, problem


def require(condition: bool, key: str, problem: str) -> None:
    """Raises ConfigError unless the condition holds."""
    if not condition:
        raise ConfigError(key, problem)


def nearest(name: Any, legal: Sequence[str]) -> str:
    """The end of a message that offers the legal name nearest to a wrong one."""
    name = str(name)[:MAX_SHOWN]
    initials = "".join(word[:1] for word in name.split("_"))
    if len(initials) > 1 and initials in legal:  # learning_rate: lr
        return f"; the nearest legal name is '{initials}'"
    near = difflib.get_close_matches(name, legal, n=1, cutoff=0.0)
    return f"; the nearest legal name is '{near[0]}'" if near else ""


def shown(value: Any) -> str:
    """A value as a message has it, in one line and not too long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 4]} ..."


class _Loader(yaml.SafeLoader):
    """YAML where a key given twice is an error, 1e-3 is a number, and 010 and 1:30 are not.

    Aliases are refused: a few lines of them can stand for more than any memory holds. So are tags:
    what they convert, nobody has checked.
    """

    def compose_node(self, parent, index):
        event = self.peek_event()
        line = f"line {event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(line, "has an alias (*), which is not read here")
        if event.tag is not None:
            raise ConfigError(line, f"has a tag ({shown(event.tag)}), which is not read here")
        return super().compose_node(parent, index)

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key, _ in node.value:
            line = f"line {key.start_mark.line + 1}"
            require(isinstance(key, yaml.ScalarNode), line, "a key is a word, not a list or so")
            require(key.value not in seen, line, f"{shown(key.value)} is given twice")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_NUMBERS = {  # as everybody writes them: YAML 1.1 would read 010 as 8, and 1:30 as 90
    "tag:yaml.org,2002:int": r"[-+]?(0|[1-9][0-9]*)",
    "tag:yaml.org,2002:float": r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?",
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NUMBERS]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in _NUMBERS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(f"^{_pattern}$"), list("-+.0123456789"))


def read_yaml(text: str) -> Any:
    """The tree of a YAML text; raises ConfigError."""
    require(len(text) <= MAX_TEXT, "text", f"{len(text)} characters are not a configuration")
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader: plain values only
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "unreadable characters"
        where = f"line {mark.line + 1}" if mark else "text"
        raise ConfigError(where, f"is not YAML: {problem}") from None
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError("text", "is nested too deeply") from None
    except (ValueError, OverflowError) as error:  # a date that no calendar has, or so
        raise ConfigError("text", f"has a value that cannot be read: {error}") from None


def override(tree: Any, assignment: str) -> None:
    """Sets the value at a path of keys and list positions, `classes.0.matched=0.5`, in place."""
    path, equals, text = assignment.partition("=")
    require(bool(equals), assignment, "an override has the form key=value")
    *parents, last = path.strip().split(".")
    for depth, key in enumerate(parents):
        place = _position(tree, key, ".".join(parents[: depth + 1]))
        # a key or section that the file leaves to its default; `build` tells one that no file has
        tree = tree.setdefault(place, {}) if isinstance(tree, dict) else tree[place]
    place = _position(tree, last, path.strip())
    try:
        tree[place] = read_yaml(text)
    except ConfigError as error:
        raise ConfigError(path.strip(), f"{shown(text)}: {error.problem}") from None


def _position(tree: Any, key: str, path: str) -> str | int:
    if isinstance(tree, dict):
        return key
    above = f"unknown key: what is above it is the value {shown(tree)}"
    require(isinstance(tree, list), path, above)
    inside = key.isdecimal() and len(key) < 9 and int(key) < len(tree)
    require(inside, path, f"'{key}' is not a position in a list of {len(tree)}")
    return int(key)


def build(kind: Any, value: Any, path: str) -> Any:
    """The value as `kind`: a dataclass, bool, int, float, str, Literal, tuple or Mapping of these,
    or `int | Literal["auto"]`: a number, or a word in its place.

    Raises ConfigError with the path of the first key that does not fit.
    """
    origin, args = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        return _build_dataclass(kind, value, path)
    if origin is Literal:
        require(value in args, path, f"{shown(value)} is none of {', '.join(map(str, args))}")
        return value
    if origin in (Union, UnionType):
        number, words = args
        if value in get_args(words):
            return value
        try:
            return build(number, value, path)
        except ConfigError as error:
            others = ", ".join(get_args(words))
            raise ConfigError(path, f"{error.problem}, nor {others}") from None
    if origin is tuple:
        return _build_tuple(args, value, path)
    if origin is Mapping:
        require(isinstance(value, dict), path, f"{shown(value)} is not a mapping")
        return {
            build(args[0], k, path): build(args[1], v, _join(path, k)) for k, v in value.items()
        }
    if kind is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        small = number and abs(value) <= sys.float_info.max  # false for what is not finite too
        require(small, path, f"{shown(value)} is not a number")
        return float(value)
    names = {bool: "true or false", int: "a whole number", str: "text"}
    require(type(value) is kind, path, f"{shown(value)} is not {names[kind]}")
    if kind is int:
        require(abs(value) <= LARGEST, path, f"{shown(value)} is beyond {LARGEST}")
    return value


def read_file(kind: type[T], path: Path) -> T:
    """A YAML file as a dataclass. Raises ValueError or FileNotFoundError, one line that names file,
    key and value."""
    try:
        return build(kind, read_yaml(read_text(path)), "")
    except ConfigError as error:
        raise ValueError(f"{path}: {error}") from None


def _build_dataclass(kind: type, value: Any, path: str) -> Any:
    problem = f"{shown(value)} is not a mapping of keys to values"
    require(isinstance(value, dict), path or "file", problem)
    hints = get_type_hints(kind)
    legal = [field.name for field in fields(kind)]
    for key in value:
        if key not in legal:  # the nearest is not looked for in vain
            raise ConfigError(_join(path, key), f"unknown key{nearest(key, legal)}")
    for field in fields(kind):
        given = field.name in value or field.default is not MISSING
        require(given, _join(path, field.name), "is missing")
    built = {key: build(hints[key], value[key], _join(path, key)) for key in legal if key in value}
    try:
        return kind(**built)
    except ConfigError as error:
        raise ConfigError(_join(path, error.key), error.problem) from None


def _build_tuple(args: tuple, value: Any, path: str) -> tuple:
    require(isinstance(value, list), path, f"{shown(value)} is not a list")
    if args[-1] is Ellipsis:
        args = (args[0],) * len(value)
    problem = f"{shown(value)} has {len(value)} values instead of {len(args)}"
    require(len(value) == len(args), path, problem)
    return tuple(
        build(kind, item, _join(path, i))
        for i, (kind, item) in enumerate(zip(args, value, strict=True))
    )


def _join(path: str, key: Any) -> str:
    key = " ".join(str(key).split())[:MAX_SHOWN]
    return f"{path}.{key}" if path else key


def plain(tree: Any) -> Any:
    """A tree of built values as YAML has it: tuples as lists."""
    if isinstance(tree, Mapping):
        return {key: plain(value) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return [plain(value) for value in tree]
    return tree
