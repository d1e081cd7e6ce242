"""Which fields of a record hold what: the default names, or those of --fields and --text_field."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from preprocessing.readers.entries import Record, escaped

Fields = Mapping[str, str]
"""{what is wanted: the field's name; dots lead into nested objects}."""


def add_field_options(parser: argparse._ActionsContainer, text: str, roles: Sequence[str]) -> None:
    """Add --fields, for any of `roles`, and --text_field, for the role `text` alone."""
    parser.add_argument(
        "--fields",
        nargs="+",
        default=[],
        type=_pair(roles),
        metavar="WHAT=NAME",
        help=f"the records' own names of {', '.join(roles)}; dots lead into nested objects, as in "
        f"{roles[-1]}=metadata.{roles[-1]}",
    )
    parser.add_argument("--text_field", metavar="NAME", help=f"short for --fields {text}=NAME")


def fields_from(options: argparse.Namespace, text: str) -> dict[str, str]:
    """The fields of a command line, sorted. Raises ValueError where one is given twice."""
    pairs = [*options.fields]
    if options.text_field is not None:
        pairs.append((text, options.text_field))
    fields = dict(sorted(pairs))
    if len(fields) < len(pairs):
        raise ValueError("--fields and --text_field name a field twice; give each once")
    return fields


def described(fields: Fields) -> dict[str, str]:
    """The fields as a setting for the manifest; none where the names are the usual ones."""
    pairs = ", ".join(f"{role}={escaped(name)}" for role, name in fields.items())
    return {"fields": pairs} if pairs else {}


def _pair(roles: Sequence[str]) -> Any:
    def parse(argument: str) -> tuple[str, str]:
        role, _, name = argument.partition("=")
        if role not in roles or not name:
            raise argparse.ArgumentTypeError(
                f"{argument!r}: expected WHAT=NAME, WHAT one of {', '.join(roles)}"
            )
        return role, name

    return parse


def lookup(record: Record, name: str) -> Any:
    """A record's field; a name with dots leads into nested objects. None if there is none."""
    if name in record:
        return record[name]
    first, dot, rest = name.partition(".")
    inner = record.get(first) if dot else None
    return lookup(inner, rest) if isinstance(inner, dict) else None


def renamed(record: Record, fields: Fields) -> Record:
    """The record with the fields that are there under the names that are wanted."""
    found = {role: lookup(record, name) for role, name in fields.items()}
    return {**record, **{role: value for role, value in found.items() if value is not None}}
