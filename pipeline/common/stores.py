"""Files on stores (S3, Google Cloud Storage, Hugging Face) and web servers, through fsspec.

The one module that knows fsspec, imported when the first URL is used: a local path never comes
here. Files are read by ranges, each a request of its own, so a cut connection is resumed where it
broke; a request that a store refuses for a while, as by throttling, is repeated after growing
pauses. Files are written whole: a store shows one when all of it has arrived; its size is checked.

Credentials come from the environment or the files of each store's own tools, never from a URL.
"""

import errno
import io
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from glob import has_magic
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from pipeline.common.store_errors import (
    CREDENTIALS,
    UNREACHED,
    explained,
    is_passing,
    reason_of,
    text_of,
)

PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub", "https": "aiohttp"}
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")  # where http:// is as good as https://
FIRST_BLOCK, LARGEST_BLOCK = 2**16, 2**23  # bytes of a request; sequential ones grow fourfold
WAITS = (1, 2, 4, 8, 16, 32, 64)  # seconds before a request is repeated
QUICK_WAITS = WAITS[:3]  # where a misspelt name is as likely: before the first answer

Result = TypeVar("Result")
_reached: set[tuple[str, ...]] = set()  # protocols and hosts or buckets that answered before


@dataclass(frozen=True)
class StorePath:
    """A file or folder on a store, with the methods of a Path that readers need.

    Its text leaves out the query of a web address, which may hold a signature. `size` is its bytes
    where a listing told them.
    """

    url: str
    size: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return self.url.partition("?")[0] if self.protocol == "https" else self.url

    def __truediv__(self, name: str) -> "StorePath":
        return StorePath(f"{self.url.rstrip('/')}/{name}")

    @property
    def protocol(self) -> str:
        """A key of PACKAGES; that of http is https."""
        protocol = self.url.partition(":")[0]
        return "https" if protocol == "http" else protocol

    @property
    def parts(self) -> tuple[str, ...]:
        """As those of a Path, to sort by."""
        return tuple(part for part in str(self).split("/") if part)

    @property
    def name(self) -> str:
        """Its last part."""
        return self.parts[-1]

    @property
    def stem(self) -> str:
        """Its name without the last suffix."""
        return Path(self.name).stem

    def is_dir(self) -> bool:
        """No: folders are not read from stores."""
        return False

    def stat(self) -> SimpleNamespace:
        """Its size as `st_size`. Raises OSError."""
        return SimpleNamespace(st_size=_size(self) if self.size is None else self.size)

    def open(self, mode: str = "rb", buffering: int = -1) -> Any:
        """The file for reading, seekable; unbuffered where `buffering` is 0."""
        if mode != "rb":
            raise ValueError(f"{self} cannot be opened in mode {mode}")
        file = StoreFile(self)
        return io.BufferedReader(file, FIRST_BLOCK) if buffering else file

    def read_bytes(self) -> bytes:
        """The whole content. Raises OSError."""
        with self.open() as file:
            return file.read()


Location = Path | StorePath
"""Where a file is: on a local or shared file system, or on a store."""


class StoreFile(io.RawIOBase):
    """A file on a store, read by ranges: few bytes at first, more where it is read on and on."""

    def __init__(self, path: StorePath) -> None:
        self._path, self._size = path, path.stat().st_size
        self._position = self._start = 0
        self._block, self._step = b"", FIRST_BLOCK

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with at least one byte; 0 at the end. Raises OSError."""
        if self._position >= self._size:
            return 0
        if not self._start <= self._position < self._start + len(self._block):
            self._fetch(len(buffer))
        at = self._position - self._start
        part = self._block[at : at + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def _fetch(self, wanted: int) -> None:
        goes_on = self._block and self._position == self._start + len(self._block)
        self._step = min(4 * self._step, LARGEST_BLOCK) if goes_on else FIRST_BLOCK
        stop = min(self._position + max(self._step, min(wanted, LARGEST_BLOCK)), self._size)
        self._start, self._block = self._position, read_range(self._path, self._position, stop)


def is_url(text: object) -> bool:
    """Whether a text names a file on a store and not a local one; a Path has one slash of two."""
    return "://" in str(text) or str(text).partition(":/")[0] in PACKAGES


def url_of(path: object) -> str:
    """The URL that a Path was made of, which holds one slash of its two."""
    protocol, _, rest = str(path).partition(":/")
    return f"{protocol}://{rest.lstrip('/')}"


def store_path(url: str) -> StorePath:
    """The path of a URL. Raises ValueError unless it can be one of a store that is known here."""
    protocol, _, rest = url.partition("://")
    host = rest.partition("/")[0]
    if protocol not in (*PACKAGES, "http"):
        raise ValueError(
            f"{url} is on no store known here; give a local path, or a URL that begins with "
            f"{', '.join(f'{name}://' for name in PACKAGES)}"
        )
    path = StorePath(url)
    parts = str(path).partition("://")[2].rstrip("/").split("/")
    if protocol == "http" and host.rpartition(":")[0] not in LOOPBACK and host not in LOOPBACK:
        raise ValueError(f"{path} is read unencrypted; give https://")
    if "@" in host:
        raise ValueError(f"a URL holds a user's name or key; {CREDENTIALS[path.protocol]}")
    if not host or has_magic(host) or {"..", ".", ""} & set(parts) or not url.isprintable():
        raise ValueError(f"{url!r} is no URL; expected as {protocol}://BUCKET/FOLDER/FILE")
    return path


def location(text: str | Path) -> Location:
    """The path that a text names. Raises ValueError on a URL that cannot be used."""
    return store_path(str(text)) if is_url(text) else Path(text)


def find(pattern: str) -> list[StorePath]:
    """The files that a URL, or on a store a pattern with * ? [ ], names; sorted, perhaps none.

    Raises ValueError for a URL that cannot be used and for a folder, OSError where the store
    cannot be reached or has no such bucket.
    """
    path = store_path(pattern)
    if path.protocol == "https" or not has_magic(pattern):
        try:
            found = _information(path)
        except FileNotFoundError:
            _check_bucket(path)
            return []
        if found["type"] != "file":
            raise ValueError(
                f"{path} is a folder; give its files, as '{path / '*.gz'}', or an archive"
            )
        return [StorePath(path.url, _size(path, found))]
    names = _ask(path, lambda files: files.glob(path.url, detail=True), QUICK_WAITS)
    if not names:
        _check_bucket(path)
    files = [
        StorePath(f"{path.protocol}://{name}", int(info["size"]))
        for name, info in names.items()
        if info["type"] == "file" and not name.endswith("/")
    ]
    return sorted(files, key=lambda file: file.parts)


def sizes(folder: StorePath) -> dict[str, int]:
    """Name and bytes of each file in a folder, from one listing.

    Empty where there is no such folder. Raises OSError where there is no such bucket.
    """
    try:
        found = _ask(folder, lambda files: files.ls(folder.url, detail=True), QUICK_WAITS)
    except FileNotFoundError:
        _check_bucket(folder)
        return {}
    return {info["name"].rpartition("/")[2]: info["size"] for info in found if info["size"]}


def size_of(path: StorePath) -> int | None:
    """Bytes of a file, None if it is not there. Raises OSError."""
    try:
        return _size(path)
    except FileNotFoundError:
        return None


def read_range(path: StorePath, start: int, stop: int) -> bytes:
    """The bytes [start, stop) of a file, asked for again until all arrive. Raises OSError."""

    def read(files: Any) -> bytes:
        content = files.cat_file(path.url, start=start, end=stop)
        if len(content) > stop - start:
            raise ValueError("the server sends whole files only; download it")
        if len(content) < stop - start:
            raise EOFError(f"{len(content):,} of {stop - start:,} bytes arrived")
        return content

    return _ask(path, read)


def put(local: Path, path: StorePath) -> None:
    """Copy a local file to a store, and check that it is there as long as it is here.

    Raises ValueError for a web server, OSError where the store does not take it.
    """
    size = local.stat().st_size

    def write(files: Any) -> None:
        files.put_file(str(local), path.url)
        files.invalidate_cache()
        if (stored := files.info(path.url)["size"]) != size:
            raise EOFError(f"{stored:,} of {size:,} bytes arrived")

    check_writable(path)
    _ask(path, write)


def remove(path: StorePath) -> None:
    """Remove a file if it is there. Raises OSError."""
    try:
        _ask(path, lambda files: files.rm_file(path.url))
    except FileNotFoundError:
        return


def check_writable(path: StorePath) -> None:
    """Raise ValueError for a web server, which takes no files."""
    if path.protocol == "https":
        raise ValueError(
            f"{path}: nothing can be written to a web server; give s3://, gs://, hf://"
        )


def _size(path: StorePath, found: dict[str, Any] | None = None) -> int:
    size = (found or _information(path))["size"]
    if size is None:
        raise OSError(errno.EIO, "the server does not tell its size; download it", str(path))
    return int(size)


def _information(path: StorePath) -> dict[str, Any]:
    return _ask(path, lambda files: files.info(path.url), QUICK_WAITS)


def _check_bucket(path: StorePath) -> None:
    """Raise FileNotFoundError where not only the file but its bucket or data set is missing."""
    if path.protocol != "https":
        root = path.parts[: 4 if path.protocol == "hf" else 2]
        bucket = StorePath(f"{root[0]}//{'/'.join(root[1:])}")
        try:
            _information(bucket)
        except FileNotFoundError:
            what = "data set" if path.protocol == "hf" else "bucket"
            raise FileNotFoundError(errno.ENOENT, f"there is no such {what}", str(bucket)) from None


def _files(path: StorePath) -> Any:
    return _filesystem(path.protocol, os.getpid())  # another process needs connections of its own


def _options(protocol: str) -> dict[str, Any]:
    """Of fsspec's file system: nothing is remembered; the web is read as the environment says."""
    if protocol != "https":
        return {"use_listings_cache": False} if protocol in ("s3", "gs") else {}
    import ssl

    session = {"auto_decompress": False, "trust_env": True}  # a .gz stays one; proxies
    return {"client_kwargs": session, "ssl": ssl.create_default_context()}  # SSL_CERT_FILE


@lru_cache
def _filesystem(protocol: str, _: int) -> Any:
    package = PACKAGES[protocol]
    try:
        import fsspec

        return fsspec.filesystem(protocol, skip_instance_cache=True, **_options(protocol))
    except ImportError as error:
        raise ValueError(
            f"{protocol}:// needs {package}: `pip install {package}` ({error.name} is missing)"
        ) from None


def _ask(
    path: StorePath, request: Callable[[Any], Result], waits: tuple[float, ...] | None = None
) -> Result:
    """The answer to a request, repeated after each of `waits` seconds (WAITS) while it may help.

    Raises OSError that names the path, with the reason in its own words.
    """
    files, place = _files(path), path.parts[:2]
    waits = WAITS if waits is None or place in _reached else waits
    for attempt, wait in enumerate((*waits, None), start=1):
        try:
            answer = request(files)
            _reached.add(place)
            return answer
        except ValueError as error:
            hint = UNREACHED * ("endpoint" in str(error).lower())
            raise ValueError(f"{path}: {error}{hint}") from None
        except Exception as error:
            reason = reason_of(error)
            if wait is None or not is_passing(reason):
                raise explained(str(path), path.protocol, reason, attempt) from error
            if attempt > 2:
                note = f"{path}: {text_of(reason)}; trying again in {wait:.0f} s"
                print(note, file=sys.stderr, flush=True)
        time.sleep(wait * random.uniform(0.5, 1))  # many ranks are throttled at once
    raise AssertionError("unreachable")
