"""A folder shown as on a distant file system: every request takes a while, all share one link.

A read-only FUSE mount of a flat folder, served by a process of its own. The system caches its pages
and reads it ahead as it does with any file system, so that a loader meets what it meets on a
parallel or network file system. Needs /dev/fuse and the right to mount: root's, or that of a
namespace of one's own (`unshare --map-root-user --mount COMMAND`).
"""

import contextlib
import ctypes
import errno
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

OUTSTANDING = 64  # requests served at once, as many as an NFS 4.1 session has slots
PAGES = 256  # of 4 KiB: the largest read, as that of an NFS mount (1 MiB)
VALID = 60  # seconds for which names and attributes are cached, as NFS does with old files
READ_ONLY, MNT_DETACH = 1 | 2 | 4, 2  # the first is MS_RDONLY, MS_NOSUID and MS_NODEV
# Names, numbers and structures from here on are those of linux/fuse.h, protocol 7.31.
KEEP_CACHE, ASYNC_READ, MAX_PAGES = 1 << 1, 1 << 0, 1 << 22
LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, INIT, INTERRUPT, BATCH_FORGET = (
    1, 2, 3, 14, 15, 18, 26, 36, 42,
)  # fmt: skip
UNANSWERED = (FORGET, BATCH_FORGET, INTERRUPT)
ROOT = 1  # number of the folder itself
HEADER = struct.Struct("<IIQQIIII")  # length, operation, number of the request, of the file, ...


class SharedLink:
    """What all requests share: each takes `latency` seconds, bytes pass at `bandwidth` a second."""

    def __init__(self, latency: float, bandwidth: float) -> None:
        self.latency, self.bandwidth = latency, bandwidth
        self._lock, self._free = threading.Lock(), 0.0

    def wait(self, size: int) -> None:
        """Return when an answer of `size` bytes has arrived."""
        with self._lock:
            self._free = max(self._free, time.monotonic()) + size / self.bandwidth
            arrives = self._free + self.latency
        time.sleep(max(0.0, arrives - time.monotonic()))


class Server:
    """Answers the kernel's requests for the files of a folder; `serve` returns when unmounted."""

    def __init__(self, device: int, folder: Path, link: SharedLink) -> None:
        self.device, self.link = device, link
        self._files: dict[int, int] = {ROOT: os.open(folder, os.O_RDONLY)}
        self._numbers: dict[bytes, int] = {}
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Several threads, each of which answers one request at a time."""
        threads = [threading.Thread(target=self._answer_all) for _ in range(OUTSTANDING)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _answer_all(self) -> None:
        for request in self._requests():
            _, operation, number, file, *_ = HEADER.unpack_from(request)
            if operation in UNANSWERED:
                continue
            status, content = 0, b""
            try:
                content = self._answer(operation, file, request[HEADER.size :])
            except OSError as error:
                status = -(error.errno or errno.EIO)
            if operation not in (INIT, RELEASE):
                self.link.wait(len(content))
            with contextlib.suppress(OSError):  # given up meanwhile
                answer = struct.pack("<IiQ", 16 + len(content), status, number) + content
                os.write(self.device, answer)

    def _requests(self) -> Iterator[bytes]:
        """The kernel's requests to this thread, until it is unmounted."""
        while True:
            try:
                request = os.read(self.device, 2**16)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):  # given up meanwhile
                    continue
                return
            if not request:
                return
            yield request

    def _answer(self, operation: int, file: int, body: bytes) -> bytes:
        if operation == INIT:
            return struct.pack(
                "<IIIIHHIIHHI28x", 7, 31, PAGES * 4096, ASYNC_READ | MAX_PAGES, OUTSTANDING,
                OUTSTANDING, 4096, 1, PAGES, 0, 0,
            )  # fmt: skip
        if operation == LOOKUP:
            number = self._number(body.rstrip(b"\0"))
            return struct.pack("<QQQQII", number, 0, VALID, VALID, 0, 0) + self._attributes(number)
        if operation == GETATTR:
            return struct.pack("<QII", VALID, 0, 0) + self._attributes(file)
        if operation == OPEN:
            return struct.pack("<QII", 0, KEEP_CACHE, 0)
        if operation == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return os.pread(self._files[file], size, offset)
        if operation == RELEASE:
            return b""
        raise OSError(errno.ENOSYS, "not offered")

    def _number(self, name: bytes) -> int:
        with self._lock:
            if name not in self._numbers:
                descriptor = os.open(name, os.O_RDONLY, dir_fd=self._files[ROOT])
                self._numbers[name] = number = len(self._files) + ROOT
                self._files[number] = descriptor
            return self._numbers[name]

    def _attributes(self, number: int) -> bytes:
        found = os.fstat(self._files[number])
        return struct.pack(
            "<QQQQQQIIIIIIIIII", number, found.st_size, -(-found.st_size // 512), 0,
            int(found.st_mtime), 0, 0, 0, 0, found.st_mode, 1, 0, 0, 0, 4096, 0,
        )  # fmt: skip


@contextlib.contextmanager
def throttled(folder: Path, latency: float, bandwidth: float) -> Iterator[Path]:
    """`folder` mounted anew, nothing of it cached, behind a SharedLink.

    `latency` is in seconds, `bandwidth` in bytes a second. The mount is detached at once: the path
    leads to it for this process alone, and it is gone with it. Raises ValueError where a mount is
    not allowed.
    """
    with tempfile.TemporaryDirectory() as place:
        server = _mount(place, folder, latency, bandwidth)
        try:
            root = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        finally:
            _libc("umount2", place.encode(), MNT_DETACH)
    try:
        yield Path(f"/proc/self/fd/{root}")
    finally:
        os.close(root)
        server.terminate()
        server.wait()


def _mount(place: str, folder: Path, latency: float, bandwidth: float) -> subprocess.Popen:
    """Mount `folder` at `place`; the process that serves it, and ends when it is unmounted."""
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
        try:
            user = f"user_id={os.getuid()},group_id={os.getgid()}"
            options = f"fd={device},rootmode=40000,{user}".encode()
            _libc("mount", b"throttled", place.encode(), b"fuse", READ_ONLY, options)
            words = [sys.executable, __file__, device, folder.resolve(), latency, bandwidth]
            return subprocess.Popen([*map(str, words)], pass_fds=[device], start_new_session=True)
        finally:
            os.close(device)  # with the server's, the last: requests fail once it is dead
    except OSError as error:
        raise ValueError(
            f"no throttled file system: {error}; it needs /dev/fuse and the right to mount: put "
            "`unshare --map-root-user --mount` in front of the command"
        ) from error


def _libc(name: str, *arguments: bytes | int) -> None:
    """Call a function of the C library. Raises OSError if it fails."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name)


if __name__ == "__main__":
    mounted, shown, seconds, rate = sys.argv[1:]
    Server(int(mounted), Path(shown), SharedLink(float(seconds), float(rate))).serve()
