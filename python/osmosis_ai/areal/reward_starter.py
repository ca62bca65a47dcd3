"""Starts reward processes from a template, and starts the template when there is none."""

from __future__ import annotations

import pickle
import selectors
from collections.abc import Callable, Sequence

from osmosis_ai.areal import reward_setup
from osmosis_ai.areal.reward_process import END, PRELOAD, START
from osmosis_ai.areal.reward_slot import Call, Crashed, Outcome
from osmosis_ai.areal.reward_template import Template


class ProcessStarter:
    """Starts processes, and reports how they ended. The pool's lock guards all of it."""

    def __init__(self, settle: Callable[[Call, Outcome], None]) -> None:
        self._settle = settle
        self._selector: selectors.BaseSelector | None = None
        self._template: Template | None = None
        self._preloaded: set[str] = set()
        self._ending: dict[int, Call | None] = {}

    def open(self, selector: selectors.BaseSelector) -> None:
        """From now on this selector reports messages of the template."""
        self._selector = selector

    @property
    def ending(self) -> list[Call]:
        """Calls whose process is gone, and of which it is not known yet how it ended."""
        return [call for call in self._ending.values() if call is not None]

    def start(self, fds: Sequence[int]) -> None:
        """A new process, which gets these files."""
        self._send(START, b"", fds)

    def end(self, pid: int, lost: Call | None) -> None:
        """The process is to end; the call `lost` with it is settled when it is known how."""
        self._ending[pid] = lost
        self._send(END, pid.to_bytes(8, "little"))

    def preload(self, module: str) -> None:
        """Processes to come have the module imported already."""
        if module not in self._preloaded:
            self._preloaded.add(module)
            self._send(PRELOAD, pickle.dumps((reward_setup.setup(), module)))

    def receive(self, template: Template) -> None:
        """Reads the messages of the template."""
        if template is not self._template:
            return
        try:
            ended = template.ended()
        except EOFError:
            self._lose()
            return
        for pid, code in ended:
            call = self._ending.pop(pid, None)
            if call is not None:
                self._settle(call, Crashed(code, call.attempts))

    def close(self) -> None:
        """Ends the template."""
        if self._template is not None:
            self._template.close()

    def abandon(self) -> None:
        """In a forked child: the template is the parent's."""
        if self._template is not None:
            self._template.abandon()

    def _send(self, kind: int, payload: bytes, fds: Sequence[int] = ()) -> None:
        """Sends to the template, starting it when there is none."""
        for _ in range(2):
            if self._template is None:
                if kind != START:
                    # Whatever it is about ended with the last template.
                    return
                self._template = Template()
                assert self._selector is not None
                self._selector.register(self._template, selectors.EVENT_READ, self._template)
            try:
                self._template.send(kind, payload, fds)
                return
            except OSError:
                self._lose()

    def _lose(self) -> None:
        """Somebody killed it: its processes go with it, the next one starts afresh."""
        template, self._template = self._template, None
        if template is not None:
            if self._selector is not None:
                self._selector.unregister(template)
            template.close()
        self._preloaded.clear()
        for call in self.ending:
            self._settle(call, Crashed(None, call.attempts))
        self._ending.clear()
