"""Atomic writes: a file is complete or absent, never half-written."""

import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

WITHOUT_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
"""What file systems without hard links answer."""
LOCK_SECONDS = 10.0
"""A lock held for longer is a dead process's: its holder writes one small file."""
CHUNK = 2**20
"""Bytes of a file that are read from beginning to end at once."""


def temporary_name(path: Path) -> Path:
    """A hidden name next to `path`, unique to this process; renamed to `path` when complete."""
    return path.with_name(f".{path.name}.{os.uname().nodename}-{os.getpid()}.tmp")


def flush_to_disk(file: IO[Any]) -> None:
    """Flush what was written so far to disk, through the system's cache."""
    file.flush()
    os.fsync(file.fileno())


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file that may be absent or of another kind; empty then."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def replace_bytes(path: Path, content: bytes) -> None:
    """Write under a temporary name, flush to disk, then rename."""
    temporary = temporary_name(path)
    try:
        with temporary.open("wb") as file:
            file.write(content)
            flush_to_disk(file)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # left only by a failure


def replace_text(path: Path, text: str) -> None:
    """`replace_bytes` of text in UTF-8."""
    replace_bytes(path, text.encode())


def replace_json(path: Path, value: Any) -> None:
    """`replace_bytes` of a JSON value, in UTF-8."""
    replace_bytes(path, json_bytes(value, indent=1))


def json_bytes(value: Any, indent: int | None = None) -> bytes:
    """A JSON value in UTF-8, with a newline; half a surrogate pair, as in file names that are not
    UTF-8, becomes an escape that JSON reads back."""
    text = json.dumps(value, indent=indent, ensure_ascii=False) + "\n"
    return text.encode(errors="backslashreplace")


def create_json(path: Path, value: Any) -> bool:
    """Create a JSON file atomically; False if the name exists already.

    Of several processes that try at once, exactly one gets True.
    """
    temporary = temporary_name(path)
    while not path.exists():  # usually true; saves a write
        replace_json(temporary, value)
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            return False
        except FileNotFoundError:  # removed together with a dead process's files
            continue
        except OSError as error:
            if error.errno not in WITHOUT_LINKS:
                raise
            return _create_under_lock(path, value)
        finally:
            temporary.unlink(missing_ok=True)
        return True
    return False


def _create_under_lock(path: Path, value: Any) -> bool:
    """`create_json` on a file system without hard links: a folder is the lock."""
    lock = path.with_name(f".{path.name}.lock")
    deadline = time.monotonic() + LOCK_SECONDS
    while not path.exists():
        try:
            lock.mkdir()
        except FileExistsError:
            if time.monotonic() > deadline:  # its process died
                with suppress(FileNotFoundError):
                    lock.rmdir()
            time.sleep(0.02)
            continue
        try:
            if path.exists():
                return False
            replace_json(path, value)
            return True
        finally:
            with suppress(FileNotFoundError):  # taken for a dead process's
                lock.rmdir()
    return False


def file_sha256(path: Path) -> str:
    """The hex digest of a file of any size."""
    digest = hashlib.sha256()
    for chunk in chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def chunks(path: Path) -> Iterator[memoryview]:
    """A file from beginning to end, CHUNK bytes at a time, each in the buffer of the one before."""
    buffer = memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)  # twice the read-ahead
        while size := file.readinto(buffer):
            yield buffer[:size]


def when_visible(path: Path, seconds: float = 90.0) -> Path:
    """Wait until the path exists: network file systems show another node's new file late.

    Raises FileNotFoundError after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > deadline:
            raise FileNotFoundError(errno.ENOENT, f"not there after {seconds:.0f} s", str(path))
        time.sleep(0.2)
    return path


def check_folder(folder: Path, flag: str = "--output") -> Path:
    """The folder, or its nearest existing parent.

    Raises ValueError unless files can be written to it.
    """
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise ValueError(f"{flag} {folder}: {nearest} is a file; give a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ValueError(f"{flag} {folder}: {nearest} is not writable; choose another")
    return nearest


def replace_link(link: Path, target: str) -> None:
    """Point the symbolic link at `target`, relative to its folder, in one step."""
    temporary = temporary_name(link)
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)


def hold_lock(path: Path) -> IO[str] | None:
    """Lock `path` while the returned file stays open (to the process's end); None if it is locked.

    The system releases the lock when the process dies, for whatever reason.
    """
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
