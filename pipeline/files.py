"""Writing files so that nothing half-written is ever taken for complete."""

import fcntl
import json
import os
from pathlib import Path
from typing import IO, Any


def replace_text(path: Path, text: str) -> None:
    """Write `text` under a temporary name, flush it to disk, then rename it to `path`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def replace_json(path: Path, value: Any) -> None:
    """`replace_text` of a JSON value."""
    replace_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def replace_link(link: Path, target: str) -> None:
    """Point the symbolic link at `target`, relative to its folder, in one step."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}.tmp")
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
