"""A request to stop, by SIGTERM, a closed terminal, Ctrl-C or a process itself, that all follow at
the same step."""

from __future__ import annotations

import signal
import time
from typing import Any

import torch
import torch.distributed as dist

from detector.training.distributed import Processes

INSIST = 2.0  # seconds
EXIT_CODE = {signal.SIGTERM: 0, signal.SIGHUP: 0, signal.SIGINT: 130}
NOT_FINITE = 255  # larger than any signal: a process found a loss that is infinite or NaN


class StopSignal:
    """Notes the signals while it is entered. One that comes INSIST seconds later acts as it would
    have without this; sooner it is the same once more, by way of torchrun or a scheduler.

    Processes get a signal at different steps, so each step shares the notes of the step before with
    a reduction that runs on the host while the device works: nobody waits, and all see the same
    answer.
    """

    def __init__(self, processes: Processes):
        self._processes = processes
        self._noted, self._when = 0, 0.0
        self._previous: dict[int, Any] = {}  # number -> handler
        self._pending: tuple[torch.Tensor, dist.Work] | None = None

    def __enter__(self) -> StopSignal:
        for number in EXIT_CODE:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup: stays so
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._pending and error == (None, None, None):
            self._pending[1].wait()
        self._pending = None

    def ask(self, number: int) -> None:
        """As if this process had got that signal."""
        self._noted = number

    def _note(self, number: int, _) -> None:
        if not self._noted:
            self._noted, self._when = number, time.monotonic()
        elif time.monotonic() - self._when > INSIST:
            signal.signal(number, self._previous[number])
            signal.raise_signal(number)

    def agreed(self) -> int:
        """The signal to stop for, 0 for none: called by every process, equally often."""
        if self._processes.count == 1:
            return self._noted
        answer = 0
        if self._pending:
            shared, work = self._pending
            work.wait()
            answer = int(shared)
        shared = torch.tensor(self._noted)
        self._pending = shared, dist.all_reduce(shared, dist.ReduceOp.MAX, async_op=True)
        return answer
