"""The command `millisecond`, also `python -m millisecond`: runs one of the programs in `tools`.

`python -m millisecond.tools.COMMAND` and, in a checkout, `python tools/COMMAND.py` are the same.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import Any

from millisecond.tools import program

GROUPS = {
    "I have scans": {
        "tour": "a simulated drive: detect, follow, evaluate, draw",
        "detect": "boxes for every scan of a folder, as JSON",
        "demo": "play scans, recordings or a sensor live, with tracks",
        "visualize": "look at scans, labels and results, in 3-D and from above",
        "check": "examine clouds and labels of your own, write a configuration",
    },
    "I train": {
        "train_demo": "a whole training in minutes, on simulated streets",
        "prepare": "index a data set once, before training",
        "train": "train a network",
        "evaluate": "AP of weights or of result files",
        "report": "an evaluation as one HTML page, errors in pictures",
        "evaluate_tracks": "scores of tracked objects",
        "suggest": "which scans to label next",
        "autolabel": "labels of a drive, from all its scans",
        "simulate": "make streets with labels, for KITTI's or another sensor",
        "compare": "simulated scans beside real ones, by numbers",
        "import": "published data sets, such as nuScenes, as plain files",
        "import_openpcdet": "convert weights of OpenPCDet's SECOND",
    },
    "I deploy": {
        "export": "the detector as plain C++, without Python and torch",
        "ship_weights": "weights alone, in half of the bytes, with scores shifted",
        "bench": "measure this machine, and peers beside it",
        "tune": "choose dataflows for a network of your own",
    },
}
WORKING = {  # modules that programs import for their work alone, by the packages that have them
    "tqdm": ["tqdm"],
    "PIL": ["PIL", "PIL.PngImagePlugin"],
    "tensorboard": ["torch.utils.tensorboard", "torch.utils.tensorboard.summary"],
}
COMMANDS = [command for group in GROUPS.values() for command in group]
PAGE = """\
millisecond finds cars, pedestrians and cyclists as 3-D boxes in LiDAR scans.
usage: millisecond COMMAND ...      millisecond COMMAND --help shows examples
start: millisecond tour --output out; millisecond detect scans --output results

{programs}
completion: millisecond completion bash > ~/.millisecond.bash; source it"""
BASH = """_millisecond() {{
  local choices="" flags="" before="${{COMP_WORDS[*]:1:$((COMP_CWORD-1))}}"
  case "$before " in
    " ") choices="{commands} completion" ;;
    "completion ") choices="bash zsh" ;;
{parsers}
  esac
  [[ "$2" == -* ]] && choices="$flags"
  case "$before" in
{choices}
  esac
  COMPREPLY=($(compgen -W "$choices" -- "$2"))
}}
complete -o default -F _millisecond millisecond
"""
ZSH = """(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit }}
autoload -Uz bashcompinit && bashcompinit
{bash}"""


def page() -> str:
    """What `millisecond` prints alone: first steps, then the programs by reader."""
    lines = []
    for reader, commands in GROUPS.items():
        lines += [f"{reader}:", *(f"  {name:<18}{text}" for name, text in commands.items())]
    return PAGE.format(programs="\n".join(lines))


def completion(shell: str) -> str:
    """The script by which bash or zsh completes commands, options, their choices, and files where
    there is nothing else to choose from."""
    parsers, choices = [], []
    for line, parser in (pair for name in COMMANDS for pair in _below(name, _parser(name))):
        flags = " ".join(sorted(parser._option_string_actions))
        for action in parser._actions:
            words = " ".join(map(str, action.choices or ()))
            if words and not action.option_strings:
                parsers.append(f'    "{line} ") choices="{words}" flags="{flags}" ;;')
            elif words:
                cases = "|".join(f'"{line} "*"{option}"' for option in action.option_strings)
                choices.append(f'    {cases}) choices="{words}" ;;')
        parsers.append(f'    "{line} "*) flags="{flags}" ;;')
    bash = BASH.format(
        commands=" ".join(COMMANDS), parsers="\n".join(parsers), choices="\n".join(choices)
    )
    return bash if shell == "bash" else ZSH.format(bash=bash)


def _below(line: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, Any]]:
    """The parsers of the programs in a program, then its own, with the words that lead there."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from _below(f"{line} {name}", inner)
    yield line, parser


def _parser(command: str) -> argparse.ArgumentParser:
    """The parser of a program: the one that is asked to print its help."""
    made: list[argparse.ArgumentParser] = []
    shown = argparse.ArgumentParser.print_help
    argparse.ArgumentParser.print_help = lambda parser, file=None: made.append(parser)  # type: ignore
    try:
        with contextlib.suppress(SystemExit):
            _program(command)(["--help"])
    finally:
        argparse.ArgumentParser.print_help = shown  # type: ignore
    return made[0]


def _program(command: str):
    return importlib.import_module(f"millisecond.tools.{command}").main


def _do_without() -> None:
    """Help and completion are there where a package of WORKING is not installed."""
    for package in (name for name in WORKING if find_spec(name) is None):
        from unittest.mock import MagicMock  # slow

        stand_in = MagicMock(__spec__=ModuleSpec(package, None))  # torch looks at it
        sys.modules.update(dict.fromkeys(WORKING[package], stand_in))


def main() -> int:
    """Runs the command that the first argument names, and returns its exit status."""
    command, *arguments = sys.argv[1:] or [""]
    if command in ("", "-h", "--help"):
        print(page())
        return 0
    if command == "completion" and arguments in (["bash"], ["zsh"]):
        _do_without()
        print(completion(arguments[0]))
        return 0
    if command not in COMMANDS:
        known = ", ".join([*COMMANDS, "completion bash", "completion zsh"])
        print(f"error: {command}: not a command of millisecond; there are {known}", file=sys.stderr)
        return 2
    program.begin()
    if {"-h", "--help", "--help-all"} & {*arguments}:
        _do_without()
    sys.argv = [f"millisecond {command}", *arguments]
    return _program(command)()


if __name__ == "__main__":
    sys.exit(main())
