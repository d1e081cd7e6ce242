"""A scoring process: reads JSON lines [prediction, references], answers with the pairs' scores.

Its argument is 1 with the stemmer, 0 without. It exits at the end of its standard input.
"""

import json
import signal
import sys

from pipeline.common.command_line import STOP_SIGNALS
from pipeline.scoring.rouge import score_pairs


def main(use_stemmer: bool) -> None:
    """Answer every line until standard input ends."""
    for number in STOP_SIGNALS:  # meant for the caller, which ends this process
        signal.signal(number, signal.SIG_IGN)
    for line in sys.stdin:
        prediction, references = json.loads(line)
        print(json.dumps(score_pairs(prediction, references, use_stemmer)), flush=True)


if __name__ == "__main__":
    main(use_stemmer=sys.argv[1] == "1")
