"""A dataset's folder on a store: shards are moved there when they are finished, the manifest last.

Only finished files go there. Stores cannot rename, and not all can create a file only once, so what
jobs agree on (leases, markers, settings) stays in a folder on a local or shared file system.
"""

from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.common.stores import StorePath, put, remove, size_of, sizes
from pipeline.manifest import MANIFEST, write_manifest

SUFFIXES = (".npy", ".tar")  # in the order in which they are uploaded


class Uploads:
    """The files of the dataset `folder` on a store, as one process sees them."""

    def __init__(self, folder: StorePath) -> None:
        self.folder = folder

    @cached_property
    def _listed(self) -> dict[str, int]:
        """Name and bytes of each file when the job began: one listing, not a request a file."""
        return sizes(self.folder)

    @property
    def are_complete(self) -> bool:
        """Whether the manifest was there when the job began."""
        return MANIFEST in self._listed

    def hold(self, shard: dict[str, Any]) -> bool:
        """Whether the files of a shard, given as in the manifest, are there."""
        if not _among(self._listed, shard):  # another process may have made it since
            for suffix in SUFFIXES:
                name = shard["name"] + suffix
                self._listed[name] = size_of(self.folder / name) or 0
        return _among(self._listed, shard)

    def add(self, local: Path, name: str | None = None) -> None:
        """Upload a file, under its own name or another. Raises OSError."""
        put(local, self.folder / (name or local.name))

    def move(self, local: Path, shard: dict[str, Any]) -> None:
        """Upload a shard's files, the samples last, and remove them from the folder `local`."""
        paths = [local / (shard["name"] + suffix) for suffix in SUFFIXES]
        for path in paths:
            self.add(path)
        for path in paths:
            path.unlink()

    def reopen(self) -> None:
        """Remove the manifest: the dataset is no longer complete."""
        remove(self.folder / MANIFEST)

    def finish(self, manifest: dict[str, Any], local: Path) -> None:
        """Upload the manifest, by way of the folder `local`.

        Raises ValueError unless all files that it names are there.
        """
        found = sizes(self.folder)
        for shard in manifest["shards"]:
            if not _among(found, shard):
                raise ValueError(
                    f"{self.folder / shard['name']}.tar is not there as this job left it; see that "
                    "nothing else writes there, then run the same command, which makes it again"
                )
        write_manifest(local, manifest)
        self.add(local / MANIFEST)


def _among(found: dict[str, int], shard: dict[str, Any]) -> bool:
    index, tar = (found.get(shard["name"] + suffix) for suffix in SUFFIXES)
    return bool(index) and tar == shard["bytes"]
