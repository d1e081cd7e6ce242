"""Recipes' YAML checked for what a parser accepts in silence; its errors in plain words."""

import re
from pathlib import Path

import yaml

KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}
WRONG_TYPE = re.compile(
    r'Parser key "(?P<field>[^"]+)": Expected an? (?:<class \'(?P<kind>\w+)\'>'
    r"|typing\.Literal\[(?P<choices>.*?)\]). Got value: (?P<value>.*)"
)


def check_recipe(path: Path) -> None:
    """Raise ValueError unless the file is YAML of fields by name, each given once."""
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text (byte {error.start}), expected YAML") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise ValueError(f"{path} is not YAML{line}: {problem}") from None
    if not isinstance(root, yaml.MappingNode):
        is_list = isinstance(root, yaml.SequenceNode)
        held = "is empty" if root is None else "holds a list" if is_list else "holds a text"
        raise ValueError(
            f"{path} {held}, expected fields by name such as `train:` and below it "
            "`max_steps: 100` (`train.py --print_config` shows all)"
        )
    _check_once(path, root, "")


def _check_once(path: Path, node: yaml.MappingNode, prefix: str) -> None:
    """Raise ValueError where a field is given twice: YAML's readers keep the last in silence."""
    lines: dict[str, int] = {}
    for key, value in node.value:
        name, line = f"{prefix}{key.value}", key.start_mark.line + 1
        if name in lines:
            raise ValueError(
                f"{path} gives {name} twice, in lines {lines[name]} and {line}; remove one"
            )
        lines[name] = line
        if isinstance(value, yaml.MappingNode):
            _check_once(path, value, f"{name}.")


def in_plain_words(message: str) -> str:
    """An error of the parser, with what was expected in words instead of Python's types."""
    message = " ".join(message.split())
    found = WRONG_TYPE.search(message)
    if not found:
        return message
    if found["choices"]:
        expected = f"one of {found['choices'].replace(chr(39), '')}"
    else:
        expected = KINDS.get(found["kind"], found["kind"])
    return f"{found['field']} is {found['value'].strip()}, expected {expected}"
