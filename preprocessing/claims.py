"""Who makes which item, when several jobs fill one folder.

A job claims an item by a file that names it, made in one step, so that one job gets it. While it
works it touches its claims. A claim whose process is gone, or that nobody has touched for a while,
is stale: the next job claims the item under the next number, again in one step. Should a job that
was thought dead finish after all, it writes the same bytes.
"""

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.files import create_json

HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 120.0  # longer than network file systems cache a file's times


class Claims:
    """The items 0 to count - 1 of a folder, as one job sees them.

    `is_done(item)` says whether an item is complete. Used in `with`, at whose end what this job
    still holds is free again. `missing` are the items not yet known to be done, `done` the others.
    """

    def __init__(self, folder: Path, count: int, is_done: Callable[[int], bool]) -> None:
        self._folder, self._is_done = folder, is_done
        self.done = {item for item in range(count) if is_done(item)}
        self.missing = [item for item in range(count) if item not in self.done]
        self._held: dict[int, Path] = {}
        self._seen: dict[Path, tuple[float, float]] = {}  # claim: (its mtime, when that was new)
        self._me = this_process()
        self._closed = threading.Event()
        self._heart = threading.Thread(target=self._beat, daemon=True)
        self._heart.start()

    def __enter__(self) -> "Claims":
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._heart.join()
        for item in list(self._held):
            self.release(item)

    def take(self) -> int | None:
        """Claim the first item that is neither done nor being made; None if there is none now."""
        current = self._current()
        for item in [item for item in self.missing if item not in self._held]:
            if self._is_done(item):
                self._mark_done(item)
                continue
            path = self._free(item, current.get(item))
            if path is None or not create_json(path, self._me):
                continue
            self._held[item] = path
            if not self._is_done(item):
                return item
            self.finish(item)  # another job finished it since we looked
        return None

    def finish(self, item: int) -> None:
        """Let go of an item that was made."""
        self._mark_done(item)
        self.release(item)

    def release(self, item: int) -> None:
        """Let go of an item."""
        self._held.pop(item).unlink(missing_ok=True)

    def others(self) -> list[str]:
        """Who holds the missing items, for a message."""
        current = self._current()
        held = [_read(current[item]) for item in self.missing if item in current]
        return sorted({f"{claim.get('job')} on {claim.get('host')}" for claim in held})

    def _mark_done(self, item: int) -> None:
        self.done.add(item)
        self.missing.remove(item)

    def _free(self, item: int, claim: Path | None) -> Path | None:
        """The name under which an item can be claimed, or None while a living job holds it."""
        number = 0
        if claim is not None:
            if not self._is_stale(claim):
                return None
            number = _number(claim) + 1
        return self._folder / f"{item:05d}.claim-{number}"

    def _current(self) -> dict[int, Path]:
        """Each claimed item's latest claim."""
        claims = sorted(self._folder.glob("[0-9]*.claim-*"), key=_number)
        return {int(path.name.partition(".")[0]): path for path in claims}

    def _is_stale(self, path: Path) -> bool:
        try:
            touched = path.stat().st_mtime
        except FileNotFoundError:  # let go of just now: free at the next look
            return False
        if is_gone(_read(path), self._me):
            return True
        # Only whether the time changes counts, so clocks of two machines are never compared.
        before = self._seen.get(path)
        if before is None or before[0] != touched:
            self._seen[path] = (touched, time.monotonic())
            return False
        return time.monotonic() - before[1] > STALE_SECONDS

    def _beat(self) -> None:
        while not self._closed.wait(HEARTBEAT_SECONDS):
            for path in list(self._held.values()):
                try:
                    os.utime(path)
                except OSError:  # a taken-over or finished item: nothing to keep alive
                    continue


def this_process() -> dict[str, Any]:
    """What a claim says: the job, the host, and enough to tell later whether this process lives."""
    job = os.environ.get("SLURM_JOB_ID")
    return {
        "job": f"Slurm job {job}" if job else f"process {os.getpid()}",
        "host": os.uname().nodename,
        "machine": _machine(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
    }


def is_gone(claim: dict[str, Any], me: dict[str, Any]) -> bool:
    """Whether the claiming process certainly runs no more; of other machines nothing is certain."""
    same_machine = me["machine"] is not None and claim.get("machine") == me["machine"]
    return same_machine and claim["started"] != _started(claim["pid"])


def _machine() -> dict[str, str] | None:
    """This boot of this machine, and which process numbers mean the same (containers differ)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return {"boot": boot, "processes": str(Path("/proc/self/ns/pid").readlink())}
    except OSError:  # not Linux
        return None


def _started(pid: int) -> str | None:
    """When a process of this machine started, in the kernel's ticks; None if it runs no more."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else fields[18]


def _read(path: Path) -> dict[str, Any]:
    try:
        claim = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return claim if isinstance(claim, dict) else {}


def _number(path: Path) -> int:
    return int(path.name.rpartition("-")[2])
