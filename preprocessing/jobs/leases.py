"""Leases: which job makes which item, when several jobs fill one folder.

A job leases item 7 by creating the file `00007.claim-0` atomically, so exactly one job gets it, and
touches the file while it works. A lease whose process has ended, or that nobody has touched for
STALE_SECONDS, is stale: the next job leases the item under the next number. If a job that was
taken for dead finishes after all, it writes the same bytes.
"""

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.common.files import create_json

HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 120.0  # longer than network file systems cache a file's times


class Leases:
    """The items 0 to count - 1 of a folder, as one job sees them.

    `is_done(item)` says whether an item is complete. Used in `with`; on exit the leases that this
    job still holds are released. `done` are the items known to be done, in the order in which that
    became known. No folder is listed, so an item costs the same however many there are.
    """

    def __init__(self, folder: Path, count: int, is_done: Callable[[int], bool]) -> None:
        self._folder, self._is_done = folder, is_done
        self.done = [item for item in range(count) if is_done(item)]
        known = set(self.done)
        self._waiting = deque(item for item in range(count) if item not in known)
        self._held: dict[int, Path] = {}
        self._seen: dict[Path, tuple[float, float]] = {}  # lease: (mtime, when first seen with it)
        self._owner = this_process()
        self._closed = threading.Event()
        self._heartbeat = threading.Thread(target=self._touch_held, daemon=True)
        self._heartbeat.start()

    def __enter__(self) -> "Leases":
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._heartbeat.join()
        for item in list(self._held):
            self.release(item)

    @property
    def are_all_done(self) -> bool:
        """Whether nothing is left to lease or to finish."""
        return not self._waiting and not self._held

    def take(self) -> int | None:
        """Lease the next item that is neither done nor leased; None if there is none now."""
        for _ in range(len(self._waiting)):
            item = self._waiting.popleft()
            if self._is_done(item):
                self.done.append(item)
                continue
            path = self._next_name(item)
            if path is None or not create_json(path, self._owner):
                self._waiting.append(item)  # another job's: looked at again after all others
                continue
            self._held[item] = path
            if not self._is_done(item):
                return item
            self.finish(item)  # another job finished it in the meantime
        return None

    def finish(self, item: int) -> None:
        """Mark a leased item as done and release it."""
        self.done.append(item)
        self.release(item)

    def release(self, item: int) -> None:
        """Give up the lease on an item."""
        self._held.pop(item).unlink(missing_ok=True)

    def _next_name(self, item: int) -> Path | None:
        """The file that leases an item, or None while a running job holds it."""
        number = 0
        while (path := self._lease(item, number)).exists():
            number += 1
        if number and not self._is_stale(self._lease(item, number - 1)):
            return None
        return path

    def _lease(self, item: int, number: int) -> Path:
        return self._folder / f"{item:05d}.claim-{number}"

    def _is_stale(self, path: Path) -> bool:
        try:
            touched = path.stat().st_mtime
        except FileNotFoundError:  # released just now: free at the next look
            return False
        if has_ended(_read(path), self._owner):
            return True
        # Only a change of the time counts, so the clocks of two machines are never compared.
        before = self._seen.get(path)
        if before is None or before[0] != touched:
            self._seen[path] = (touched, time.monotonic())
            return False
        return time.monotonic() - before[1] > STALE_SECONDS

    def _touch_held(self) -> None:
        while not self._closed.wait(HEARTBEAT_SECONDS):
            for path in list(self._held.values()):
                try:
                    os.utime(path)
                except OSError:  # taken over or finished: nothing to keep alive
                    continue


def this_process() -> dict[str, Any]:
    """A lease's content: job, host, and what identifies this process for as long as it runs."""
    job = os.environ.get("SLURM_JOB_ID")
    return {
        "job": f"Slurm job {job}" if job else f"process {os.getpid()}",
        "host": os.uname().nodename,
        "machine": _machine(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
    }


def has_ended(owner: dict[str, Any], me: dict[str, Any]) -> bool:
    """Whether a lease's process has certainly ended; of other machines nothing is certain."""
    same_machine = me["machine"] is not None and owner.get("machine") == me["machine"]
    return same_machine and owner["started"] != _started(owner["pid"])


def _machine() -> dict[str, str] | None:
    """This boot of this machine, and its process namespace (containers number theirs apart)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return {"boot": boot, "processes": str(Path("/proc/self/ns/pid").readlink())}
    except OSError:  # not Linux
        return None


def _started(pid: int) -> str | None:
    """When a process of this machine started, in the kernel's ticks; None if it has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else fields[18]


def _read(path: Path) -> dict[str, Any]:
    try:
        owner = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}
