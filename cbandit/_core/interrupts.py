"""Ctrl-C between the two halves of a change would leave one of them: it waits."""

from __future__ import annotations

# what signal.signal does, without its 4 microseconds of enums
import _signal  # type: ignore[import-not-found]
from signal import SIGINT, default_int_handler
from threading import get_ident, main_thread
from types import FrameType, TracebackType

__all__ = ["Held"]


class Held:
    """Ctrl-C waits until what is inside is done; a second one does not wait.

    Handlers of one's own stay: only where Python's would raise is anything held.
    """

    __slots__ = ("_active", "_heard")

    def __enter__(self) -> Held:
        self._heard = False
        # another thread is never interrupted
        self._active = (
            get_ident() == main_thread().ident
            and _signal.getsignal(SIGINT) is default_int_handler
        )
        if self._active:
            _signal.signal(SIGINT, self._hear)
        return self

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._heard:
            raise KeyboardInterrupt
        self._heard = True

    def let_go(self) -> None:
        """Raise now what has been held, where nothing is half done."""
        if self._heard:
            self._heard = False
            raise KeyboardInterrupt

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._active:
            _signal.signal(SIGINT, default_int_handler)
            self.let_go()
