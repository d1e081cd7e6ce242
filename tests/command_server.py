"""Runs Python commands in forks of one process that has imported the heavy libraries.

Each line of standard input is JSON {"words", "folder", "environment", "log"}: a command's words
after `python`, where and with what to run it, and the file for its output. Each line of the output
is an exit status. A fork has the arguments, working directory, environment and sys.path[0] that
`python SCRIPT ...` or `python -m MODULE ...` has, without 4 s of imports.
"""

import json
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path

TIMEOUT = 900  # seconds, for one command on a busy machine


def run(words: list[str], folder: str, environment: dict[str, str], log: str) -> int:
    """The exit status of a command, run by this process."""
    signal.alarm(TIMEOUT)  # kills this process
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    try:
        if words[0] == "-m":
            sys.path[0] = folder
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(folder, words[0]).resolve().parent)
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print while they are imported
    import deepspeed  # noqa: F401
    import matplotlib.figure  # noqa: F401
    import transformers  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if not child:
            status = run(**json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)
