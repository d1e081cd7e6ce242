"""What a job asks for, read as sbatch reads it."""

import pytest

from pipeline.chaining.resources import Request, minutes
from pipeline.chaining.slurm import in_vain, parse_id, parse_queue

SCRIPT = """\
#!/usr/bin/env bash
# A job.
#SBATCH --job-name=locost-pretrain
#SBATCH --nodes=4 --gpus-per-node=h100:4   # two on a line
#SBATCH -t 20:00:00

#SBATCH --signal=B:USR2@300
set -e
#SBATCH --time=1
"""


def test_directives_end_with_the_first_command():
    assert Request.of(SCRIPT, {}, ()) == Request(nodes=4, gpus=4, minutes=1200.0, warning=5.0)


def test_variables_come_before_directives_and_flags_before_both():
    environment = {"SBATCH_TIMELIMIT": "2-12", "SBATCH_GPUS_PER_NODE": "0"}
    assert Request.of(SCRIPT, environment, ()) == Request(4, 0, 3600.0, 5.0)
    flags = ("--time", "30", "-N2", "--gpus-per-node=8", "--exclusive")
    assert Request.of(SCRIPT, environment, flags) == Request(2, 8, 30.0, 5.0)


@pytest.mark.parametrize(
    "flags, gpus",
    [
        ("--gres=gpu:2", 2),
        ("--gres=gpu:a100:2,ssd:1", 2),
        ("--gres=gpu", 1),
        ("--gres=none", 0),
        ("--gpus=16", 4),
        ("-G 16", 4),
        ("--gpus-per-task=1 --ntasks-per-node=4", 4),
        ("--gpus-per-task=h100:1 --ntasks=8", 2),
    ],
)
def test_gpus_in_every_form(flags, gpus):
    assert Request.of("#!/bin/bash\n#SBATCH --nodes=2-4\n", {}, flags.split()).gpus == gpus


def test_a_value_that_cannot_be_read_is_named():
    for flags, fault in [
        (["--nodes=many"], "--nodes=many is not a number"),
        (["--time=1h"], "time limit '1h' is not one of Slurm's forms"),
        (["--gpus=all"], "'all' is not a number of GPUs"),
    ]:
        with pytest.raises(ValueError, match=fault):
            Request.of(SCRIPT, {}, flags)


def test_time_limits_in_all_forms_of_slurm():
    forms = {
        "90": 90, "90:30": 90.5, "1:30:00": 90, "1-1": 1500, "1-1:30": 1530, "1-1:30:30": 1530.5,
    }  # fmt: skip
    assert {text: minutes(text) for text in forms} == forms
    assert minutes("UNLIMITED") is None
    for wrong in ("", "1:2:3:4", "-5", "1-", "1-2:3:4:5", "ten"):
        with pytest.raises(ValueError, match="time limit"):
            minutes(wrong)


@pytest.mark.parametrize(
    "limit, warning, hours, runs",
    [
        (1200, 0, 100, 5),
        (1200, 0, 100.1, 6),
        (1200, 5, 100, 6),  # 5 x 19:55 are 99:35
        (1200, 5, 99.5, 5),
        (60, 5, 0.01, 1),
    ],
)
def test_links_are_as_many_as_the_usable_time_needs(limit, warning, hours, runs):
    assert Request(4, 4, limit, warning).runs(hours) == runs


def test_without_a_limit_links_cannot_be_counted():
    with pytest.raises(ValueError, match="no time limit"):
        Request(4, 4, None).runs(10)


def test_a_job_id_is_certain_or_refused():
    assert parse_id("12\n") == 12
    assert parse_id("12;cluster\n") == 12
    assert parse_id("Welcome to the cluster\n12\nbudget: 7 h\n") == 12
    for text in ("", "Submitted batch job", "12\n13\n", "12 13", "-12", "12_1"):
        with pytest.raises(ValueError, match="sbatch printed no job id"):
            parse_id(text)


def test_the_queue_as_squeue_prints_it():
    jobs = parse_queue(
        "CLUSTER: box\n"
        "36|RUNNING|None|2026-11-28T10:50:48|n1|locost-pretrain|(null)|locost:/runs:pretrain\n"
        "37|PENDING|Dependency|N/A||locost-pretrain|afterok:33_*(unfulfilled)|locost:/a|b:pretrain\n"
        "33_1|COMPLETED|None|2026-11-28T10:50:46|n[1-2]|locost-preprocess-c4|(null)|(null)\n"
        "33_2|FAILED|NonZeroExitCode|2026-11-28T10:50:46|n3|locost-preprocess-c4|(null)|(null)\n"
        "38+0|RUNNING|None|N/A||other|(null)|(null)\n"
    )
    assert sorted(jobs) == [33, 36, 37]
    assert jobs[37].comment == "locost:/a|b:pretrain"
    assert [task.index for task in jobs[33].tasks] == [1, 2]
    assert (jobs[36].alive, jobs[36].waiting, jobs[37].waiting) == (True, False, True)
    assert (jobs[33].alive, jobs[33].failed) == (False, True)
    assert jobs[36].tasks[0].start is not None and jobs[37].tasks[0].start is None


def test_what_waits_for_a_failed_job_waits_in_vain_and_so_does_what_waits_for_that():
    rows = {
        "50": ("FAILED", "(null)"),
        "51": ("PENDING", "afterok:50(failed)"),
        "52": ("PENDING", "afterok:51(unfulfilled)"),
        "53": ("PENDING", "afterok:60_*(unfulfilled)"),
        "54": ("PENDING", "afterok:60_1(unfulfilled),afterok:60_3(unfulfilled)"),
        "55": ("PENDING", "afterok:54(unfulfilled),afterok:52(unfulfilled)"),
        "56": ("PENDING", "afterok:99(unfulfilled)"),
        "57": ("RUNNING", "(null)"),
        "60_1": ("RUNNING", "(null)"),
        "60_2": ("FAILED", "(null)"),
        "60_3": ("COMPLETED", "(null)"),
    }
    text = "\n".join(f"{i}|{s}|None|N/A||name|{d}|" for i, (s, d) in rows.items())
    assert in_vain(parse_queue(text)) == {51, 52, 53, 55}
