"""A preprocessing job, and the state of its output folder: settings, markers, missing items.

One input file, or one block of a large file, is one item and makes one shard, numbered by its
position among all items, so the output does not depend on the number of ranks or jobs. An item is
done when its marker, which holds its statistics, and the shard that the marker describes are there.
A dataset on a store has its record (markers, leases, settings) in a local or shared folder, where
each shard is made before it is uploaded.

Files that are added to a finished dataset make a new version of it: their items follow those of the
version before, whose shards stay as they are and whose manifest is kept under another name.
"""

import hashlib
import json
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline import shards
from pipeline.common.command_line import shown
from pipeline.common.files import check_folder, create_json, replace_json
from pipeline.common.settings import differences
from pipeline.common.stores import Location, StorePath
from pipeline.manifest import FORMAT_VERSION, MANIFEST
from pipeline.shards import Sample
from pipeline.tokenizer import AnyTokenizer
from preprocessing.dataset.samples import at_record
from preprocessing.dataset.statistics import Statistics
from preprocessing.jobs.upload import Uploads
from preprocessing.readers.entries import Entry, Item, Reader
from preprocessing.readers.evaluation_texts import EvaluationTexts
from preprocessing.readers.inputs import Listing
from preprocessing.readers.minhash import MinHash

ITEMS = ".items"
EVALUATION_TEXTS = Path(ITEMS, "evaluation texts", "00000.npy")
DUPLICATE_FOLDERS = ("keys", "runs", "pairs", "duplicates")
"""Of the stages that compare all inputs, in their order."""
SETTINGS = "settings.json"
EXTENDING = "extending"
"""Is there while files are added: the manifest is that of the version before."""
SHOWN_DIFFERENCES = 5


@dataclass(frozen=True)
class Job:
    """A dataset of `kind` to make in `output`, one shard from each item.

    With a `destination`, a folder on a store, finished files go there and `output` is the job's
    own folder.
    `settings` is everything the output depends on except the inputs and the tokenizer. `read`
    yields the entries of an item; `screen`, which may use `evaluation_texts`, replaces the record
    of one that a filter excludes by the reason; of what is left, `deduplicate` keeps the first of
    equal texts, `near_duplicates` of similar ones; `samples` turns entries into (key, sample)
    pairs, keys unique in the item, and counts them in the Statistics it is given. `left_out` names
    the files of an item that are not read. `expected_samples` is the paper's count, if it has one.
    """

    output: Path
    kind: str
    split: str
    tokenizer: AnyTokenizer
    settings: dict[str, Any]
    listing: Listing
    read: Reader
    samples: Callable[[Iterable[Entry], Statistics], Iterator[tuple[str, Sample]]]
    screen: Callable[[Entry], Entry] | None = None
    left_out: Callable[[Item], Sequence[str]] = lambda item: ()
    deduplicate: bool = False
    near_duplicates: MinHash | None = None
    evaluation_texts: EvaluationTexts | None = None
    expected_samples: int | None = None
    destination: StorePath | None = None

    @property
    def name(self) -> str:
        """The dataset's name: that of its folder."""
        return shown((self.destination or self.output.resolve()).name)

    @property
    def place(self) -> Location:
        """The dataset's folder, as --output names it."""
        return self.destination or self.output

    @cached_property
    def uploads(self) -> Uploads | None:
        """The destination's files."""
        return Uploads(self.destination) if self.destination else None

    @property
    def id_dtype(self) -> str:
        """The narrowest id type that holds the tokenizer's vocabulary."""
        return shards.id_dtype_for(self.tokenizer.vocab_size)

    @cached_property
    def description(self) -> dict[str, Any]:
        """Everything that decides the output's bytes; one folder, one description."""
        return {
            "format_version": FORMAT_VERSION,
            "kind": self.kind,
            "name": self.name,
            "split": self.split,
            "tokenizer": self.tokenizer.sha256,
            **self.settings,
            **self.comparison,
            **({"input_versions": versions} if (versions := [*self.listing.versions]) else {}),
            "inputs": list(self.inputs.values()),
        }

    @property
    def comparison(self) -> dict[str, Any]:
        """How the texts of all inputs are compared; empty if they are not."""
        exact = {"deduplicate": True} if self.deduplicate else {}
        near = self.near_duplicates
        return exact | ({"near_duplicates": near.describe()} if near else {})

    @property
    def compares_inputs(self) -> bool:
        """Whether what is kept of an input depends on the others."""
        return bool(self.comparison)

    @property
    def items(self) -> Sequence[Item]:
        """The work items, in the order of their shards."""
        return self.listing.items

    @property
    def inputs(self) -> dict[Location, str]:
        """Each input file's description."""
        return self.listing.inputs

    @cached_property
    def fingerprints(self) -> list[str]:
        """Per item, a digest of everything that decides its shard.

        The other inputs count only where duplicates are removed across all of them, and then those
        of its version.
        """
        settings = {**self.description}
        settings.pop("input_versions", None)
        inputs = settings.pop("inputs")
        ends = self.listing.versions or (len(inputs),)
        starts = []  # of each version's digests, so that the settings are hashed once
        for end in ends:
            seen = {**settings, "inputs": inputs[:end]} if self.compares_inputs else settings
            starts.append(hashlib.sha256(f"[{json.dumps(seen)}, ".encode()))
        place = {path: number for number, path in enumerate(self.inputs)}
        found = []
        for number, item in enumerate(self.items):
            digest = starts[bisect_right(ends, place[item.path])].copy()
            rest = json.dumps([number, self.inputs[item.path], item.start])
            digest.update(rest.removeprefix("[").encode())
            found.append(digest.hexdigest())
        return found

    def screened(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """The entries, with reasons in place of the records that a filter excludes."""
        if self.screen is None:
            yield from entries
            return
        for entry in entries:
            with at_record(entry.number):
                screened = self.screen(entry)
            yield screened

    @property
    def manifest_path(self) -> Path:
        """The manifest, written last."""
        return self.output / MANIFEST

    @property
    def is_complete(self) -> bool:
        """Whether the manifest is written, of all inputs."""
        return self.manifest_path.is_file() and not self.extending.exists()

    @property
    def extending(self) -> Path:
        """Is there while files are added to a finished dataset."""
        return self.folder() / EXTENDING

    def folder(self, name: str = "") -> Path:
        """A stage's folder of markers and leases."""
        return self.output / ITEMS / name

    def marker(self, item: int) -> Path:
        """The file that says that an item's shard is written: fingerprint, shard, statistics."""
        return self.folder() / f"{item:05d}.json"

    def is_made(self, item: int) -> bool:
        """Whether an item's marker and shard are there. Raises ValueError on another job's."""
        path = self.marker(item)
        if not path.is_file():
            return False
        marker = json.loads(path.read_bytes())
        if marker["fingerprint"] != self.fingerprints[item]:
            raise ValueError(f"{path} belongs to other settings; choose another --output")
        shard = marker["shard"]
        if self.uploads:
            return self.uploads.hold(shard)
        tar, index = (self.output / f"{shard['name']}{suffix}" for suffix in (".tar", ".npy"))
        return tar.is_file() and index.is_file() and tar.stat().st_size == shard["bytes"]

    def missing(self) -> list[int]:
        """The items that are not made yet."""
        return [item for item in range(len(self.items)) if not self.is_made(item)]


def open_output(job: Job) -> None:
    """Create the output folder, or prepare to resume what it holds.

    Raises ValueError as `check_output` does.
    """
    check_output(job)
    path = job.folder() / SETTINGS
    path.parent.mkdir(parents=True, exist_ok=True)
    if not create_json(path, job.description):
        check_output(job)  # perhaps another job started just now
        before = json.loads(path.read_bytes())
        if _is_extended(job, _finished_part(job, before)):
            job.extending.touch()  # first, so that the manifest is never taken for the new one
        if before != job.description:
            _forget_comparison(job, before)
            replace_json(path, job.description)
    if job.extending.exists() and not _is_adding(job.output, job.description["inputs"]):
        remove_working_files(job)  # the addition was withdrawn
        job.extending.unlink(missing_ok=True)
    if job.is_complete and (job.missing() or (job.uploads and not job.uploads.are_complete)):
        if job.uploads:
            job.uploads.reopen()
        job.manifest_path.unlink()  # a shard was lost since
    if job.uploads:  # first, so that a store that takes nothing is found at once
        job.uploads.add(job.tokenizer.path, job.tokenizer.file_name)


def check_output(job: Job) -> None:
    """Raise ValueError unless the output folder can be made, or what it holds is this job's."""
    check_folder(job.output, "--work_dir" if job.uploads else "--output")
    path = job.folder() / SETTINGS
    held = job.uploads.are_complete if job.uploads else False
    if not path.is_file():
        if held or job.manifest_path.exists():
            work_dir = ", or give the --work_dir with which it was made" if job.uploads else ""
            raise ValueError(
                f"{job.place} already holds a dataset, and {job.folder()} has no record of its "
                f"job; choose another --output{work_dir}"
            )
        return
    before = json.loads(path.read_bytes())
    changes = _changes(before, job.description)
    finished = _finished_part(job, before)
    if finished != before and (job.description == finished or _is_extended(job, finished)):
        return
    if _is_extended(job, before):
        if not job.manifest_path.is_file() or _is_adding(job.output, before["inputs"]):
            raise ValueError(
                f"{job.place} is not finished: finish it with the {len(before['inputs'])} inputs "
                "that it was begun with, then add others"
            )
    elif changes and not _only_unused_inputs_changed(job, before):
        raise ValueError(
            f"{job.output} holds results of other settings: "
            f"{'; '.join(changes[:SHOWN_DIFFERENCES])}; "
            f"choose another {'--work_dir' if job.uploads else '--output or delete it'}"
        )


def remove_working_files(job: Job) -> None:
    """Remove what the stages before the last made for themselves."""
    for name in (*DUPLICATE_FOLDERS, EVALUATION_TEXTS.parent.name):
        shutil.rmtree(job.folder(name), ignore_errors=True)


def check_complete(job: Job) -> None:
    """Raise ValueError unless every item is made."""
    if missing := job.missing():
        raise ValueError(
            f"{len(missing)} of {len(job.items)} items are not made yet, the first from "
            f"{job.items[missing[0]]}; run the same command without --finish"
        )


def _changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """One phrase per setting or input that differs between two descriptions."""
    was, is_now = _by_input(before), _by_input(now)
    unset = dict.fromkeys({**was, **is_now}, "not set")
    return differences({**unset, **was}, {**unset, **is_now})


def _by_input(description: dict[str, Any]) -> dict[str, Any]:
    """A description with each input as a setting of its own, `input N`."""
    inputs = {f"input {n}": text for n, text in enumerate(description["inputs"])}
    return {name: value for name, value in description.items() if name != "inputs"} | inputs


def _is_extended(job: Job, before: dict[str, Any]) -> bool:
    """Whether the only difference is that inputs follow those of before."""
    now = {**job.description}
    for one in (now, before := {**before}):
        one.pop("input_versions", None)
    count = len(before["inputs"])
    return (
        now != before
        and now == {**before, "inputs": now["inputs"]}
        and (now["inputs"][:count] == before["inputs"])
    )


def earlier_inputs(output: Path) -> tuple[list[str], list[int]]:
    """The descriptions of the inputs of the job that filled a folder, and those of its versions."""
    path = output / ITEMS / SETTINGS
    found = json.loads(path.read_bytes()) if path.is_file() else {}
    inputs, versions = found.get("inputs", []), found.get("input_versions", [])
    if versions and _is_adding(output, inputs):  # only of those that are finished
        versions = versions[:-1]
        inputs = inputs[: versions[-1]]
    return inputs, versions


def _is_adding(output: Path, inputs: Sequence[str]) -> bool:
    """Whether files are being added to a dataset: its manifest is not that of these inputs."""
    if not (output / ITEMS / EXTENDING).exists():
        return False
    path = output / MANIFEST
    settings = json.loads(path.read_bytes())["settings"] if path.is_file() else {}
    return settings.get("inputs") != inputs


def _finished_part(job: Job, before: dict[str, Any]) -> dict[str, Any]:
    """The description of the finished version to which files were being added, as long as no shard
    of them is made: the addition may be withdrawn or be another one. Otherwise `before`."""
    versions = before.get("input_versions")
    if not versions or not _is_adding(job.output, before["inputs"]):
        return before
    finished = {**before, "inputs": before["inputs"][: versions[-2]]}
    if len(versions) > 2:
        finished["input_versions"] = versions[:-1]
    else:
        del finished["input_versions"]
    old = {*islice(job.inputs, versions[-2])}
    first = sum(item.path in old for item in job.items)
    made = any(int(marker.stem) >= first for marker in job.folder().glob("[0-9]*.json"))
    return before if made else finished


def _forget_comparison(job: Job, before: dict[str, Any]) -> None:
    """Remove the keys of the items from the first changed input on, which may have other numbers
    now, and what was made of all keys."""
    pairs = zip(job.inputs.items(), before["inputs"], strict=False)
    same = {path for (path, description), old in pairs if description == old}
    first = next((n for n, item in enumerate(job.items) if item.path not in same), len(job.items))
    keys, *later = map(job.folder, DUPLICATE_FOLDERS)
    for made in keys.glob("*.npy"):
        if int(made.stem) >= first:
            made.unlink(missing_ok=True)
    for folder in later:
        shutil.rmtree(folder, ignore_errors=True)


def _only_unused_inputs_changed(job: Job, before: dict[str, Any]) -> bool:
    """Whether the only differences are inputs of which no shard was made, under the same names.

    For example a damaged file that was downloaded again. Where all inputs are compared, every shard
    of a version is made of all its inputs.
    """
    if len(before["inputs"]) != len(job.inputs):
        return False
    if {**before, "inputs": None} != {**job.description, "inputs": None}:
        return False
    used = {item.path for number, item in enumerate(job.items) if job.marker(number).is_file()}
    *_, start, _ = (0, 0, *job.listing.versions)
    if job.compares_inputs and used & {*islice(job.inputs, start, None)}:
        return False
    return all(
        old == new or (path not in used and old.split(", ")[0] == path.name)
        for (path, new), old in zip(job.inputs.items(), before["inputs"], strict=True)
    )
