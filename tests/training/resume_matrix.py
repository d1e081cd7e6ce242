"""Resumes under every ZeRO configuration and other numbers of processes.

    deepspeed resume_matrix.py PHASE OUTPUT train.py's arguments...

Phase `alone` (one process) starts a run, `pair` (two) resumes it and makes all the others, `fewer`
(one) resumes copies of those. OUTPUT/told-PHASE.json holds what each printed.
"""

import io
import json
import shutil
import sys
from contextlib import redirect_stdout
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from pipeline.config import parse  # noqa: E402
from pipeline.distributed import world as distributed  # noqa: E402 (the root first)
from pipeline.training.prepare import prepare  # noqa: E402
from pipeline.training.trainer import train  # noqa: E402

STOP, END = 3, 6
CONFIGURATIONS = ("zero1", "zero2", "zero2_offload", "zero3")
SAME = [(zero, precision) for zero in CONFIGURATIONS for precision in ("fp32", "bf16")]
# (run that is resumed, configuration, accumulation). Stage 3 comes last: DeepSpeed then
# replaces torch's linear function for good.
PAIR = [
    ("alone", "zero1", 2),
    ("zero1-fp32", "zero2_offload", 2),
    ("zero1-fp32", "zero2", 2),
    ("zero2-fp32", "zero1", 4),
    ("zero2-fp32", "zero3", 2),
    ("zero3-fp32", "zero3", 1),
]
FEWER = [
    ("zero1-fp32", "zero1", 1),
    ("zero2-fp32", "zero2", 4),
    ("zero2_offload-fp32", "zero2_offload", 2),
    ("zero3-fp32", "zero2", 2),
    ("zero1-bf16", "zero1", 2),
    ("zero1-fp32", "zero3", 2),
    ("zero3-fp32", "zero3", 2),
]


def resumed_name(source: str, zero: str, accumulation: int, processes: int) -> str:
    """The folder of a copy of `source` that was resumed in another way."""
    return f"{source}-then-{zero}-{accumulation}-{processes}"


class Runs:
    """Trains in one process group, under OUTPUT/<name>."""

    def __init__(self, output: Path, arguments: list[str]) -> None:
        self.output, self.arguments = output, arguments
        self.world = distributed.start()
        self.told: dict[str, str] = {}

    def train(self, name: str, zero: str, precision: str, accumulation: int, steps: int) -> None:
        config, _ = parse(
            [
                *self.arguments,
                *("--deepspeed_config", f"ds_configs/{zero}.json"),
                *("--train.precision", precision, "--train.accumulation", str(accumulation)),
                *("--train.max_steps", str(steps), "--output", str(self.output / name)),
            ]
        )
        with redirect_stdout(io.StringIO()) as printed:
            status = train(config, prepare(config, self.world), self.world)
        assert status == 0
        self.told[name] = printed.getvalue()

    def keep_until_stop(self, name: str) -> None:
        """Copy a run as it stood at step STOP, as if it had been killed right after that save."""
        if not self.world.is_main:
            return
        stopped = self.output / f"{name}-stopped"
        shutil.copytree(self.output / name, stopped, symlinks=True)
        for later in sorted((stopped / "checkpoints").glob("step-*")):
            if int(later.name.removeprefix("step-")) > STOP:
                shutil.rmtree(later)
        (stopped / "FINISHED").unlink()

    def resume(self, cases: list[tuple[str, str, int]]) -> None:
        for source, zero, accumulation in cases:
            name = resumed_name(source, zero, accumulation, self.world.size)
            if self.world.is_main:
                stopped = self.output / f"{source}-stopped"
                shutil.copytree(stopped, self.output / name, symlinks=True)
            self.world.barrier()
            precision = "bf16" if source.endswith("bf16") else "fp32"
            self.train(name, zero, precision, accumulation, END)


def main(phase: str, output: Path, arguments: list[str]) -> None:
    runs = Runs(output, arguments)
    if phase == "alone":
        runs.train("alone-stopped", "zero2", "fp32", 2, STOP)
    elif phase == "pair":
        for zero, precision in SAME:
            name = f"{zero}-{precision}"
            runs.train(name, zero, precision, 2, END)
            runs.keep_until_stop(name)
            runs.resume([(name, zero, 2)])
            if name == "zero2_offload-bf16":  # the last before stage 3
                runs.resume([case for case in PAIR if "zero3" not in case[0] + case[1]])
        runs.resume([case for case in PAIR if "zero3" in case[0] + case[1]])
    else:
        runs.resume(FEWER)
    if runs.world.is_main:
        (output / f"told-{phase}.json").write_text(json.dumps(runs.told))
    distributed.stop()


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]
    main(words[0], Path(words[1]), words[2:])
