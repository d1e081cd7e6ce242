"""A real Slurm on loopback: munged, slurmctld and four slurmds with four fake GPUs each.

Everything runs below one shell that is process 1 of a PID namespace and reads its commands from
a pipe. However this process ends, the pipe closes, the shell exits, and the kernel kills every
daemon, job and orphan of the namespace with it, so nothing survives. Each node also has a
UTS namespace (its `hostname`) and a mount namespace (an /etc/hosts that knows all nodes and a
private /dev/shm). An ordinary user gets all this inside a user namespace, where that
is allowed, with the daemons and the jobs running as that user.
"""

import itertools
import os
import pwd
import random
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

NODES = ("n1", "n2", "n3", "n4")
GPUS = 4  # a node
FINAL_STATES = (
    "COMPLETED FAILED CANCELLED TIMEOUT NODE_FAIL PREEMPTED OUT_OF_MEMORY DEADLINE BOOT_FAIL"
).split()
PROGRAMS = "munged slurmctld slurmd sbatch srun scontrol sinfo squeue scancel unshare".split()
SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"  # daemons: not in everyone's PATH
FOREIGN = ("SLURM", "SBATCH", "SRUN", "SALLOC", "SQUEUE", "SINFO", "SCANCEL", "SCONTROL", "DS_")

CONFIGURATION = """\
ClusterName=test
SlurmctldHost=controller(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
# Credentials live for two minutes by default, and a requeued job waits for its old one to end.
AuthInfo=socket={sockets}/munge.sock,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={sockets}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
FirstJobId={first_job}
MinJobAge=3600
JobRequeue={requeue}
KillWait=5
# A dead slurmd is noticed after 15 s, not 25.
MessageTimeout=5
SlurmdTimeout=10
SlurmctldTimeout=30
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
# Nodes may claim more cores and memory than this host has.
SlurmdParameters=config_overrides
SlurmctldParameters=preempt_send_user_signal
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=main Nodes=ALL Default=YES DefaultTime=10 PriorityTier=1 PreemptMode=REQUEUE \
GraceTime=8
PartitionName=urgent Nodes=ALL DefaultTime=10 PriorityTier=10 PreemptMode=OFF
"""
NODE = (
    "NodeName={name} NodeAddr=127.0.0.1 Port={port} CPUs=64 Boards=1 SocketsPerBoard=1 "
    "CoresPerSocket=64 ThreadsPerCore=1 RealMemory=1000000 Gres=gpu:{gpus}"
)


# Ports are derived from job ids modulo 1000: those of five consecutive clusters differ.
_windows = itertools.count(random.randrange(1000, 900_000), 200)


class Unavailable(RuntimeError):
    """Slurm cannot run here; the message says why."""


def free_ports(count: int) -> range:
    """Consecutive ports of loopback that no process listens on.

    They are below the kernel's ephemeral ports, so no outgoing connection takes one meanwhile,
    and above those derived from job ids.
    """
    candidates = list(range(30000, 32700, 10))
    random.shuffle(candidates)
    for first in candidates:
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return range(first, first + count)
    raise Unavailable("no free ports between 30000 and 32700 on 127.0.0.1")


def parse_fields(line: str) -> dict[str, str]:
    """`Key=value` pairs of one line of `scontrol show -o`; values may contain spaces."""
    parts = re.split(r"(?:^| )([A-Z][\w:/]*)=", line.strip())
    return dict(zip(parts[1::2], parts[2::2], strict=True))


class Cluster:
    """Partitions `main` (default, preemptible) and `urgent` (preempts it) over n1..n4.

    Default behaviour otherwise: children of failed jobs stay.
    `requeue=False` is a site whose jobs are not requeued unless submitted with --requeue.
    """

    def __init__(self, folder: Path, *, requeue: bool = True) -> None:
        self.folder = folder.resolve()
        self.sockets = Path()  # a short path: those of sockets are limited to 108 bytes
        self.requeue = requeue
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)
        }
        self.environment["SLURM_CONF"] = str(self.folder / "slurm.conf")
        self.environment["PATH"] = os.environ.get("PATH", os.defpath) + ":" + SYSTEM_PATH

    def __enter__(self) -> "Cluster":
        self._check_programs()
        self._configure()
        self._open_shell()
        try:
            self._start()
        except BaseException as error:
            self.stop()
            if isinstance(error, RuntimeError):
                who = f"user {os.getuid()}" if os.getuid() else "root"
                raise Unavailable(f"Slurm cannot run here as {who}: {error}") from None
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # ---------------------------------------------------------------- jobs

    def run(self, *command: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run a command (scontrol, squeue, srun, ...) against this cluster.

        Raises RuntimeError with its output if it fails and `check` is set.
        """
        return self._call(command, check=check)

    def submit(self, *arguments: str, cwd: Path | str | None = None, **environment: str) -> str:
        """Submit a job by `sbatch --parsable *arguments`; returns its id.

        `environment` is added to the job's. Raises RuntimeError with sbatch's text.
        """
        command = ("sbatch", "--parsable", *arguments)
        return self._call(command, cwd=cwd, environment=environment).stdout.strip().split(";")[0]

    def job(self, job_id: str) -> dict[str, str]:
        """The fields of `scontrol show job` (the first task's, if it is an array)."""
        return self.tasks(job_id)[0]

    def tasks(self, job_id: str) -> list[dict[str, str]]:
        """The fields of every task of an array; one entry for another job."""
        lines = self.run("scontrol", "show", "job", "-o", job_id).stdout.splitlines()
        return [parse_fields(line) for line in lines if line.strip()]

    def wait(self, job_id: str, *states: str, timeout: float = 300.0) -> str:
        """Wait until the job (every task of an array) is in one of `states`, and return it.

        Default: any final state. An array's state is the first of its tasks' other than COMPLETED.
        Raises TimeoutError with the job's fields and the tail of its log after `timeout` seconds,
        or when the job has ended in another state.
        """
        deadline = give_up = time.monotonic() + timeout
        while True:
            found = [task["JobState"] for task in self.tasks(job_id)]
            if all(state in (states or FINAL_STATES) for state in found):
                return next((state for state in found if state != "COMPLETED"), "COMPLETED")
            # A job that is about to be requeued may seem to have ended for a moment.
            ended = all(state in FINAL_STATES for state in found)
            give_up = min(give_up, time.monotonic() + 10) if ended else deadline
            if time.monotonic() > give_up:
                fields = "\n".join(f"{key}={value}" for key, value in self.job(job_id).items())
                tail = "\n".join(self.log(job_id).splitlines()[-40:])
                wanted = " or ".join(states) or "ended"
                raise TimeoutError(
                    f"job {job_id} is {' '.join(found)}, not {wanted}, after {timeout:g} s\n"
                    f"{fields}\n--- log\n{tail}"
                )
            time.sleep(0.2)

    def log(self, job_id: str) -> str:
        """The content of the job's StdOut file so far (empty before it starts)."""
        path = Path(self.job(job_id)["StdOut"])
        return path.read_text(errors="replace") if path.is_file() else ""

    # ---------------------------------------------------------------- nodes

    def node_states(self) -> dict[str, str]:
        """Each node's state as sinfo prints it, with a `*` if the node does not respond."""
        lines = self.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T")
        return dict(line.split() for line in lines.stdout.splitlines())

    def start_slurmd(self, node: str) -> None:
        """Start the node's daemon again, and bring the node back to service if it is down."""
        self._launch(node)
        deadline = time.monotonic() + 60
        while (state := self.node_states()[node]).endswith("*") or self._has_steps(node):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{node} is {state} 60 s after its slurmd started")
            time.sleep(0.2)
        if state == "down":
            # The daemon has just ended its lost job, and revoked its credentials to the second: a
            # restart of the job before now would be ended, or refused ("Job credential revoked").
            time.sleep(1.1)
            self.set_node(node, "resume")

    def _has_steps(self, node: str) -> bool:
        """Whether a job that the node lost with its daemon still has steps there."""
        down = self.node_states()[node] == "down"
        return down and any((self.sockets / node).glob(f"{node}_*"))

    def start_controller(self, flags: str = "") -> None:
        """Start the controller; with -c it forgets the jobs it knew."""
        folder = shlex.quote(str(self.folder))
        self.inside(f"{self._as_user} slurmctld {flags} -f {folder}/slurm.conf")

    def stop_controller(self) -> None:
        """Kill the controller: nothing answers any more."""
        self.inside("pkill -KILL -x slurmctld; while pgrep -x slurmctld; do sleep 0.1; done")

    def kill_slurmd(self, node: str) -> None:
        """SIGKILL to the node's daemon. Its job steps continue, as they do on a real node."""
        self.inside(f"kill -KILL $(cat {shlex.quote(str(self.folder))}/slurmd-{node}.pid)")

    def set_node(self, node: str, state: str, reason: str = "") -> None:
        """`scontrol update` of the node's state: down, drain, resume, ..."""
        because = [f"reason={reason or 'test'}"] if state.lower() != "resume" else []
        self.run("scontrol", "update", f"nodename={node}", f"state={state}", *because)

    def inside(self, script: str) -> str:
        """Run shell commands where the jobs run (they see their process ids); returns the output.

        Raises RuntimeError with the output if they fail.
        """
        assert self._shell.stdin and self._shell.stdout
        if self._shell.returncode is not None:
            raise RuntimeError(f"{script}: the cluster has ended")
        end = f"end-{random.getrandbits(64):x}"
        with suppress(BrokenPipeError):  # the shell has failed to start: its output says why
            self._shell.stdin.write(f"( {script}\n) </dev/null 2>&1; printf '\\n{end} %d\\n' $?\n")
            self._shell.stdin.flush()
        output = ""
        for line in iter(self._shell.stdout.readline, ""):
            if line.startswith(end):
                if line.split()[1] != "0":
                    break
                return output.strip()
            output += line
        raise RuntimeError(f"{script}: {output.strip() or 'failed'}")

    # ---------------------------------------------------------------- start and stop

    def stop(self) -> None:
        """End every process of the cluster; returns when none is left."""
        assert self._shell.stdin and self._shell.stdout
        try:
            self._shell.stdin.close()
            self._shell.wait(timeout=10)  # ends after the shell, which ends after all others
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._shell.kill()
            self._shell.wait()
        self._shell.stdout.close()
        shutil.rmtree(self.sockets, ignore_errors=True)

    def _check_programs(self) -> None:
        try:
            pwd.getpwuid(os.getuid())
        except KeyError:
            raise Unavailable(f"user {os.getuid()} has no name, which Slurm requires") from None
        path = self.environment["PATH"]
        missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
        if missing:
            raise Unavailable(
                f"not installed: {' '.join(missing)} "
                "(Debian: apt-get install slurmctld slurmd slurm-client munge)"
            )

    def _configure(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.sockets = Path(tempfile.mkdtemp(prefix="slurm-"))
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        ports = free_ports(1 + len(NODES))
        nodes = [
            NODE.format(name=name, port=port, gpus=GPUS)
            for name, port in zip(NODES, ports[1:], strict=True)
        ]
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                port=ports[0],
                first_job=next(_windows),
                user=os.getuid(),
                folder=self.folder,
                sockets=self.sockets,
                requeue=int(self.requeue),
                nodes="\n".join(nodes),
            )
        )
        # Device files that every host has: with a bare count the nodes are invalid.
        (self.folder / "gres.conf").write_text(
            "Name=gpu File=/dev/null,/dev/zero,/dev/full,/dev/random\n"
        )
        names = "".join(f"127.0.0.1 {name}\n" for name in ("controller", *NODES))
        (self.folder / "hosts").write_text(Path("/etc/hosts").read_text() + "\n" + names)

    def _open_shell(self) -> None:
        user, group = os.getuid(), os.getgid()
        # Mounts and host names need the namespace's root; Slurm then runs as the user proper.
        become_root = ["--user", "--map-root-user"] if user else []
        self._as_user = f"unshare --user --map-user={user} --map-group={group} " if user else ""
        isolation = "--mount --uts --pid --fork --kill-child --mount-proc".split()
        self._shell = subprocess.Popen(
            ["unshare", *become_root, *isolation, "bash"],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C must not reach it
        )

    def _start(self) -> None:
        folder = shlex.quote(str(self.folder))
        for command in ("true", f"mount --bind {folder}/hosts /etc/hosts", "hostname controller"):
            self.inside(command)
        munged = f"{self._as_user} munged --force --key-file={folder}/munge.key"
        for kind in ("pid", "log", "seed"):
            munged += f" --{kind}-file={folder}/munged.{kind}"
        self.inside(f"{munged} --socket={self.sockets}/munge.sock")
        self.start_controller("-c")
        for node in NODES:
            self._launch(node)
        deadline = time.monotonic() + 60
        while list(self.node_states().values()) != ["idle"] * len(NODES):
            if time.monotonic() > deadline:
                logs = (self.folder / name for name in ("slurmctld.log", "slurmd-n1.log"))
                tails = "\n".join(log.read_text()[-2000:] for log in logs if log.exists())
                raise RuntimeError(f"nodes not idle after 60 s: {self.node_states()}\n{tails}")
            time.sleep(0.1)

    def _launch(self, node: str) -> None:
        """A slurmd in its own namespaces."""
        script = f"mount -t tmpfs tmpfs /dev/shm && hostname {node} && exec {self._as_user}"
        slurmd = f"slurmd -N {node} -f {shlex.quote(self.environment['SLURM_CONF'])}"
        self.inside(f"unshare --mount --uts bash -c {shlex.quote(f'{script} {slurmd}')}")

    def _call(
        self,
        command: tuple[str, ...],
        *,
        check: bool = True,
        cwd: Path | str | None = None,
        environment: dict[str, str] | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        result = subprocess.run(
            command,
            env=self.environment | (environment or {}),
            cwd=cwd,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        if check and result.returncode:
            raise RuntimeError(
                f"{shlex.join(command)}: exit status {result.returncode}\n"
                f"{result.stdout}{result.stderr}".strip()
            )
        return result
