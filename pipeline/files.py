"""Writing files so that nothing half-written is ever taken for complete."""

import errno
import fcntl
import json
import os
import time
from pathlib import Path
from typing import IO, Any


def temporary_name(path: Path) -> Path:
    """A hidden name beside `path`, unique to this process, to be renamed to `path` when whole."""
    return path.with_name(f".{path.name}.{os.uname().nodename}-{os.getpid()}.tmp")


def flush_to_disk(file: IO[Any]) -> None:
    """Bring what was written so far to disk, past the system's cache."""
    file.flush()
    os.fsync(file.fileno())


def replace_bytes(path: Path, content: bytes) -> None:
    """Write under a temporary name, flush to disk, then rename: whole or not there at all."""
    temporary = temporary_name(path)
    try:
        with temporary.open("wb") as file:
            file.write(content)
            flush_to_disk(file)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # there only where something failed


def replace_text(path: Path, text: str) -> None:
    """`replace_bytes` of a text in UTF-8."""
    replace_bytes(path, text.encode())


def replace_json(path: Path, value: Any) -> None:
    """`replace_bytes` of a JSON value."""
    replace_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def create_json(path: Path, value: Any) -> bool:
    """Write a JSON value under a name that must be new, whole and in one step; False if it exists.

    Of several processes that try at once, one gets True.
    """
    temporary = temporary_name(path)
    while not path.exists():  # seldom false, but then nothing need be written
        replace_json(temporary, value)
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            return False
        except FileNotFoundError:  # swept away with a dead process's leftovers
            continue
        finally:
            temporary.unlink(missing_ok=True)
        return True
    return False


def when_visible(path: Path, seconds: float = 90.0) -> Path:
    """The path, once it is there: network file systems show another node's new file late.

    Raises FileNotFoundError after that many seconds.
    """
    deadline = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > deadline:
            raise FileNotFoundError(errno.ENOENT, f"not there after {seconds:.0f} s", str(path))
        time.sleep(0.2)
    return path


def check_folder(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there already.

    Raises ValueError unless files can be written into it.
    """
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise ValueError(f"--output {folder}: {nearest} is a file; give a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ValueError(f"--output {folder}: {nearest} cannot be written to; choose another")
    return nearest


def replace_link(link: Path, target: str) -> None:
    """Point the symbolic link at `target`, relative to its folder, in one step."""
    temporary = temporary_name(link)
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)


def hold_lock(path: Path) -> IO[str] | None:
    """Lock `path` while the returned file stays open (to the process's end); None if it is taken.

    The system lets go of it when the process dies, however it dies.
    """
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
