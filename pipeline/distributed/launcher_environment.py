"""A process's rank and rendezvous address, from the variables that its launcher sets."""

import os
import re
import socket
from collections.abc import Mapping
from itertools import product
from pathlib import Path

# srun's are those of a step: the shells of sbatch and salloc have SLURM_PROCID and SLURM_NTASKS
# too, but a program that they start without srun is one process.
LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)
STEP = ("JOB_ID", "STEP_ID", "RESTART_COUNT")  # identify a step in one start of its job
FIRST_PORT, PORTS, PORTS_PER_JOB = 10_000, 20_000, 20


def place_from_environment(environment: Mapping[str, str]) -> tuple[int, int, int]:
    """(rank, world size, local rank) as the launcher sets them.

    deepspeed and torchrun set RANK, WORLD_SIZE and LOCAL_RANK; mpirun sets OMPI_COMM_WORLD_*; srun
    sets SLURM_*; without any of them this is the only process. Raises ValueError where rank and
    size contradict each other.
    """
    for names in LAUNCHERS:
        if all(name in environment for name in names):
            rank, size, local_rank = (int(environment[name]) for name in names)
            if not 0 <= rank < size:
                raise ValueError(
                    f"{names[0]}={rank} and {names[1]}={size} contradict each other; "
                    "unset both or start through one launcher"
                )
            return rank, size, local_rank
    return 0, 1, 0


def check_no_gpus(environment: Mapping[str, str]) -> None:
    """Raise ValueError if Slurm gave this job GPUs; called where torch sees none.

    Otherwise the job would silently train on CPUs, a hundred times slower.
    """
    gpus = environment.get("SLURM_GPUS_ON_NODE", "0")
    if gpus != "0" and environment.get("DS_ACCELERATOR") != "cpu":
        raise ValueError(
            f"this job has {gpus} GPUs on {host_name()}, but torch sees none: its build is for "
            "CPUs, or the driver is too old for it; install a matching torch, or export CPU=1 "
            "(DS_ACCELERATOR=cpu) to use CPU nodes"
        )


def meeting_point(environment: Mapping[str, str]) -> tuple[str, int]:
    """Host and port at which rank 0 waits for the others.

    These are MASTER_ADDR and MASTER_PORT; under srun they default to the step's first host and a
    port derived from job and step. Raises ValueError if they cannot be determined.
    """
    found = {
        name: environment[name] for name in ("MASTER_ADDR", "MASTER_PORT") if name in environment
    }
    if len(found) < 2 and "SLURM_STEP_NODELIST" in environment:
        found.setdefault("MASTER_ADDR", expand_hosts(environment["SLURM_STEP_NODELIST"])[0])
        numbers = (int(environment.get(f"SLURM_{name}", "0")) for name in STEP)
        found.setdefault("MASTER_PORT", str(port_of(*numbers)))
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in found]
    if missing:
        raise ValueError(
            f"{' and '.join(missing)} not set; start the processes with `deepspeed` or `srun`, or "
            "export the address and port of rank 0"
        )
    if not (found["MASTER_PORT"].isdecimal() and 0 < int(found["MASTER_PORT"]) < 2**16):
        raise ValueError(
            f"MASTER_PORT is {found['MASTER_PORT']!r}, expected a port from 1 to 65535; export "
            "another, or unset it under srun"
        )
    return found["MASTER_ADDR"], int(found["MASTER_PORT"])


def port_of(job: int, step: int, restarts: int) -> int:
    """10000 + (20 job + (step + restarts) mod 20) mod 20000, so that steps on one node differ.

    No two are equal among 20 steps of each of a thousand jobs with consecutive ids. Restarts count
    because a requeued job keeps its id, and where a slurmd died, tasks of its last start may live.
    """
    return FIRST_PORT + (PORTS_PER_JOB * job + (step + restarts) % PORTS_PER_JOB) % PORTS


def expand_hosts(nodelist: str) -> list[str]:
    """The host names in a Slurm host list: `rack[1-2]n[03,5],login` has five."""
    hosts = []
    for name in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodelist):
        parts = re.split(r"\[([^\]]*)\]", name)  # text and numbers alternate
        choices = [_numbers(part) if k % 2 else [part] for k, part in enumerate(parts)]
        hosts += ["".join(chosen) for chosen in product(*choices)]
    if not hosts:
        raise ValueError(
            f"{nodelist!r} is not a Slurm host list; export MASTER_ADDR, the host of rank 0"
        )
    return hosts


def _numbers(ranges: str) -> list[str]:
    """`003-005,7` as 003, 004, 005, 7."""
    numbers = []
    for bounds in ranges.split(","):
        low, _, high = bounds.partition("-")
        numbers += [f"{k:0{len(low)}d}" for k in range(int(low), int(high or low) + 1)]
    return numbers


def host_name() -> str:
    """This host's name: Slurm's, if it has one."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def deepspeed_launchers() -> tuple[int, int] | None:
    """Process ids of DeepSpeed's launcher on this host and of its parent, the `deepspeed` command.

    None where this process has another parent.
    """
    parent = os.getppid()
    try:
        command = Path(f"/proc/{parent}/cmdline").read_bytes()
    except OSError:
        return None
    if b"deepspeed.launcher.launch" not in command:
        return None
    above = _parent_of(parent)
    return None if above is None else (parent, above)


def _parent_of(process: int) -> int | None:
    """None where it has ended (Linux: proc_pid_stat(5))."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None
