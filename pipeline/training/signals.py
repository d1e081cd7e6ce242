"""A request to stop, asked for by a signal and honoured at the next step's end."""

import signal
from types import FrameType

CONTINUE_LATER = 85  # exit status of a run that was stopped and can be gone on with


class StopRequest:
    """Becomes true on SIGTERM, SIGINT, SIGUSR1 or SIGUSR2; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.requested = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
