"""Trainings in fresh processes without the ten seconds that importing torch and DeepSpeed takes.

    python fork_server.py SOCKET

One process imports them; every request forks ranks from it, each of which runs train.py's main
with the environment that a launcher gives. A run is a session of its own, which can be killed as a
whole; its exit status is that of the first rank that failed, and the others are then killed, as
launchers do. `fault_runs.launch` starts the true launcher.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class ForkServer:
    """The client's end: starts the server, asks it for runs."""

    def __init__(self, folder: Path) -> None:
        self.path, self.log = folder / "fork.sock", folder / "fork_server.log"
        self.runs: list[ForkedRun] = []
        environment = {**os.environ, "DS_ACCELERATOR": "cpu", "PYTHONPATH": str(ROOT)}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(self.path)],
                stdout=log, stderr=log, env=environment, start_new_session=True,
            )  # fmt: skip

    def start(
        self, arguments: Sequence[str], processes: int, environment: Mapping[str, str]
    ) -> "ForkedRun":
        """Begin train.py with these arguments on that many ranks."""
        deadline = time.monotonic() + 120
        while not self.path.exists():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.path))
        reader, writer = os.pipe()
        request = json.dumps([list(arguments), processes, dict(environment), str(Path.cwd())])
        socket.send_fds(connection, [request.encode()], [writer])
        os.close(writer)
        connection.shutdown(socket.SHUT_WR)
        self.runs.append(ForkedRun(connection, reader))
        return self.runs[-1]

    def run_in_one(self, arguments: Sequence[str]) -> tuple[int | None, str]:
        """(exit status, everything printed) of a run on one rank."""
        run = self.start(arguments, 1, {})
        text, _ = run.communicate(timeout=600)
        return run.returncode, text

    def close(self) -> None:
        for run in self.runs:  # those that a failed test has left
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class ForkedRun:
    """A run as subprocess.Popen shows one; `pid` is that of its session."""

    def __init__(self, connection: socket.socket, reader: int) -> None:
        self._answers = connection.makefile()
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None
        self._output = b""
        self._threads = [
            threading.Thread(target=work, daemon=True)
            for work in (lambda: self._read(reader), self._wait)
        ]
        for thread in self._threads:
            thread.start()

    def poll(self) -> int | None:
        return self.returncode

    def printed(self) -> str:
        """What all ranks have printed so far."""
        return self._output.decode(errors="replace")

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """(everything printed by all ranks, None)."""
        deadline = time.monotonic() + (timeout or 1e6)
        for thread in self._threads:
            thread.join(deadline - time.monotonic())
            if thread.is_alive():
                raise subprocess.TimeoutExpired("fork server", timeout or 0)
        return self.printed(), None

    def wait(self, timeout: float | None = None) -> int | None:
        self.communicate(timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def _read(self, reader: int) -> None:
        with os.fdopen(reader, "rb") as file:
            for chunk in iter(lambda: file.read1(2**16), b""):
                self._output += chunk

    def _wait(self) -> None:
        self.returncode = int(self._answers.readline())


def living(session: int) -> list[int]:
    """The processes of a session, other than zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def serve(path: str) -> None:
    """Fork a run for every connection, for ever."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the handlers
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path + ".new")
        listener.listen()
        Path(path + ".new").rename(path)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                handle(connection)
                os._exit(0)
            connection.close()


def handle(connection: socket.socket) -> None:
    """One run: answer its session's pid, then its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request, (output,), *_ = socket.recv_fds(connection, 2**20, 1)
    arguments, processes, environment, folder = json.loads(request)
    leader = os.fork()
    if leader == 0:
        connection.close()
        os.setsid()
        os.chdir(folder)
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        os.close(output)
        # The old ones remember whether theirs could seek.
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        os.environ.update(environment)
        os._exit(lead(arguments, processes))
    os.close(output)
    connection.sendall(f"{leader}\n".encode())
    _, status = os.waitpid(leader, 0)
    connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def lead(arguments: list[str], processes: int) -> int:
    """Run all ranks; the exit status of the first that fails, else 0."""
    if processes == 1:
        return train_here(arguments)
    from pipeline.distributed.world import free_port

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    ranks = {}
    for rank in range(processes):
        pid = os.fork()
        if pid == 0:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(processes))
            os._exit(train_here([f"--local_rank={rank}", *arguments]))
        ranks[pid] = rank
    failed = 0
    while ranks:
        pid, status = os.waitpid(-1, 0)
        del ranks[pid]
        if (code := os.waitstatus_to_exitcode(status)) and not failed:
            failed = code
            if code != 85:  # those that stop do so together
                for other in ranks:
                    os.kill(other, signal.SIGKILL)
    return failed


def train_here(arguments: list[str]) -> int:
    from fault_injection import injected

    from pipeline import train

    fault = os.environ.get("FAULT")
    try:
        status = train.main(arguments, injected(fault) if fault else [])
    except SystemExit as error:  # a user's error
        status = error.code
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    import fault_injection  # noqa: F401 (with all that a run imports)

    import pipeline.training.trainer  # noqa: F401

    assert threading.active_count() == 1, threading.enumerate()
    serve(sys.argv[1])
