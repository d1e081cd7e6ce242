"""The manifest of a dataset: what its shards are, how they were made, and what was left out.

It is written last, so a folder with a manifest is complete. Where files were added to a dataset,
the manifests of its earlier versions stay beside it: their shards are a part of those there are.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.common.files import replace_bytes, replace_json
from pipeline.common.stores import Location

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
REDO = "copy the folder again or preprocess into a new one"
ID_DTYPES = {"uint16": "<u2", "uint32": "<u4"}
KINDS = ("pretraining", "summarisation")
FIELDS: dict[str, type] = {
    "format_version": int,
    "kind": str,
    "name": str,
    "split": str,
    "tokenizer": dict,
    "id_dtype": str,
    "settings": dict,
    "shards": list,
    "counts": dict,
    "lengths": dict,
}


@dataclass(frozen=True)
class Shard:
    """One tar of a dataset; `name` carries no suffix."""

    name: str
    samples: int
    bytes: int
    sha256: str


def write_manifest(folder: str | Path, manifest: dict[str, Any]) -> None:
    """Check a manifest and write it; the folder is then complete."""
    path = Path(folder) / MANIFEST
    check_manifest(manifest, path)
    replace_json(path, manifest)


def read_manifest(folder: Location, version: str | None = None) -> dict[str, Any]:
    """The manifest of a folder: the version with that fingerprint if it is kept, else the newest.

    Raises FileNotFoundError where there is none, ValueError where it is not valid.
    """
    names = [*([version_name(version)] if version else []), MANIFEST]
    for name in names:
        path = folder / name
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            if name == MANIFEST:
                raise
            continue
        break
    try:
        manifest: dict[str, Any] = json.loads(content)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    check_manifest(manifest, path)
    return manifest


def manifest_fingerprint(manifest: dict[str, Any]) -> str:
    """What identifies a version of a dataset: the SHA-256 of its manifest in canonical JSON."""
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def version_name(fingerprint: str) -> str:
    """The file of the manifest of an earlier version."""
    return f"manifest-{fingerprint[:16]}.json"


def keep_version(folder: Path) -> Path:
    """Copy a folder's manifest to the name of its version, before another replaces it."""
    content = (folder / MANIFEST).read_bytes()
    kept = folder / version_name(manifest_fingerprint(json.loads(content)))
    replace_bytes(kept, content)
    return kept


def unknown_share(manifest: dict[str, Any]) -> float | None:
    """Share of the samples' characters that the tokenizer lacks; None where it was not counted."""
    counts = manifest["counts"]
    if not {"characters", "unknown_characters"} <= counts.keys():
        return None
    return counts["unknown_characters"] / max(counts["characters"], 1)


def check_manifest(manifest: dict[str, Any], path: Location) -> None:
    """Raise ValueError, naming `path` and the field, unless the manifest is valid."""
    if not isinstance(manifest, dict):
        raise ValueError(f"{path} is not a JSON object with the fields of a manifest; {REDO}")
    version = manifest.get("format_version")
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {version}, expected {FORMAT_VERSION}; "
            "preprocess the data again"
        )
    for name, kind in FIELDS.items():
        if not isinstance(manifest.get(name), kind):
            raise ValueError(f"{path}: field {name!r} is missing or is not of type {kind.__name__}")
    if manifest["kind"] not in KINDS:
        raise ValueError(f"{path}: kind is {manifest['kind']!r}, expected one of {KINDS}")
    if manifest["id_dtype"] not in ID_DTYPES:
        raise ValueError(
            f"{path}: id_dtype is {manifest['id_dtype']!r}, expected one of {tuple(ID_DTYPES)}"
        )
    if not {"file", "sha256", "vocab_size"} <= manifest["tokenizer"].keys():
        raise ValueError(f"{path}: tokenizer needs file, sha256 and vocab_size")
    _check_name(manifest["tokenizer"]["file"], "tokenizer file", path)
    wanted = Shard.__dataclass_fields__.keys()
    for position, shard in enumerate(manifest["shards"]):
        if not isinstance(shard, dict) or shard.keys() != wanted:
            raise ValueError(f"{path}: shard {position} needs exactly {', '.join(wanted)}")
        _check_name(shard["name"], f"name of shard {position}", path)


def _check_name(name: object, what: str, path: Location) -> None:
    """Raise ValueError unless a manifest's name stays within its folder."""
    if not isinstance(name, str) or not name or "/" in name or "\0" in name or name == "..":
        raise ValueError(f"{path}: {what} is {name!r}, expected the name of a file in its folder")
