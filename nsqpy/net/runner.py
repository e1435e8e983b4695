"""Running a service: the loop, the signals, an ordered stop. Used by every daemon."""

import asyncio
import faulthandler
import gc
import logging
import resource
import signal
from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

import uvloop

__all__ = ["Reloadable", "Service", "raise_file_limit", "run"]

log = logging.getLogger(__name__)

_STDERR = 2
_IGNORED = (signal.SIGUSR1, signal.SIGUSR2)


class Service(Protocol):
    """What ``run`` runs. ``start`` may raise: nothing is stopped then that was not started."""

    async def start(self) -> None: ...

    async def wait_ended(self) -> None:
        """Return when the service has ended by itself; raise why if it cannot go on."""

    async def stop(self) -> None: ...


@runtime_checkable
class Reloadable(Protocol):
    """A service that reads its files again on SIGHUP; one that is none is ended by it."""

    def reload(self) -> None: ...


def run(make: Callable[[], Awaitable[Service]]) -> int:
    """Run a service until SIGINT, SIGTERM or its own end; the exit code: 0 after a clean stop,
    else 1.

    Signals during the stop are ignored. SIGUSR1, SIGUSR2 and SIGPIPE never end the process;
    SIGQUIT prints every thread's stack, also when the loop hangs, and it goes on.
    """
    return uvloop.run(_run(make))


async def _run(make: Callable[[], Awaitable[Service]]) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    for number in _IGNORED:
        loop.add_signal_handler(number, _ignore)
    faulthandler.register(signal.SIGQUIT, file=_STDERR, all_threads=True)
    service = await make()
    await service.start()
    if isinstance(service, Reloadable):
        loop.add_signal_handler(signal.SIGHUP, service.reload)
    # What exists now stays: the collector need not look at it again and again. Objects made
    # later die by reference count; full collections are for rare cycles only.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    ended = asyncio.ensure_future(service.wait_ended())
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait([ended, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    code = 0
    if not ended.done():
        ended.cancel()
    elif (error := ended.exception()) is not None:
        log.critical("cannot go on - %s", error)
        code = 1
    try:
        await service.stop()
    except Exception as error:
        log.critical("did not stop cleanly - %s", error)
        code = 1
    return code


def _ignore() -> None:
    pass


def raise_file_limit() -> None:
    """Every connection and every log takes a descriptor: use all that the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
