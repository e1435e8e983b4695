"""``/debug/*``: what the original's Go profiles come to in Python.

| Path | Here |
|---|---|
| ``GET /debug/pprof/`` | a list of the others, as text |
| ``GET /debug/pprof/cmdline`` | the command line, parts separated by NUL: as the original |
| ``GET /debug/pprof/goroutine`` | the stack of every task and every thread |
| ``GET /debug/pprof/threadcreate`` | the threads |
| ``GET /debug/pprof/heap`` | where memory was allocated if tracemalloc runs, else objects by type |
| ``GET /debug/pprof/profile?seconds=30`` | function calls of the event loop meanwhile, 1 to 300 s |
| ``POST /debug/freememory`` | a full collection, and freed memory back to the system |

Everything is text, not Go's profile format. ``symbol``, ``block`` and ``setblockrate`` are about
Go's program counters and its scheduler: 404. Source: HTTP in docs/protocol.md.
"""

import asyncio
import cProfile
import ctypes
import gc
import io
import pstats
import sys
import threading
import traceback
import tracemalloc
from collections import Counter
from collections.abc import Mapping

from nsqpy.net.http import EMPTY, HTTPError, Reply, Request, Route, text_reply

__all__ = ["debug_routes"]

_LISTED_MAX = 100
_PROFILE_DEFAULT_S = 30
_PROFILE_MAX_S = 300


def debug_routes() -> Mapping[str, Mapping[str, Route]]:
    """The routes of ``/debug/*``; requests for profiles are not logged, as in the original."""
    profiles = {
        "cmdline": _cmdline,
        "goroutine": _goroutine,
        "heap": _heap,
        "profile": _Profiler().profile,
        "threadcreate": _threads,
    }
    names = "".join(f"/debug/pprof/{name}\n" for name in profiles)

    async def index(request: Request) -> Reply:
        return _text(names)

    routes = {
        f"/debug/pprof/{name}": {"GET": Route(handler, logged=False)}
        for name, handler in profiles.items()
    }
    routes["/debug/pprof/"] = {"GET": Route(index, logged=False)}
    routes["/debug/freememory"] = {"POST": Route(_free_memory)}
    return routes


def _text(body: str, status: int = 200) -> Reply:
    return text_reply(body, status, nsq=False)


async def _cmdline(request: Request) -> Reply:
    return _text("\0".join(sys.argv))


async def _goroutine(request: Request) -> Reply:
    output = io.StringIO()
    tasks = asyncio.all_tasks()
    output.write(f"{len(tasks)} tasks\n")
    for task in sorted(tasks, key=asyncio.Task.get_name):
        output.write("\n")
        task.print_stack(file=output)
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for identity, frame in sys._current_frames().items():
        output.write(f"\nthread {names.get(identity, identity)}\n")
        output.writelines(traceback.format_stack(frame))
    return _text(output.getvalue())


async def _threads(request: Request) -> Reply:
    lines = [
        f"{thread.name}{' daemon' if thread.daemon else ''}\n" for thread in threading.enumerate()
    ]
    return _text("".join(lines))


async def _heap(request: Request) -> Reply:
    if tracemalloc.is_tracing():
        found = tracemalloc.take_snapshot().statistics("lineno")[:_LISTED_MAX]
        return _text("".join(f"{statistic}\n" for statistic in found))
    kinds = Counter(
        f"{type(item).__module__}.{type(item).__qualname__}" for item in gc.get_objects()
    )
    head = "objects by type; start Python with PYTHONTRACEMALLOC=1 to see where they come from\n"
    return _text(head + "".join(f"{n:10} {kind}\n" for kind, n in kinds.most_common(_LISTED_MAX)))


class _Profiler:
    """One profile at a time, since there is one event loop to look at."""

    def __init__(self) -> None:
        self._running = False

    async def profile(self, request: Request) -> Reply:
        raw = request.query.get("seconds", str(_PROFILE_DEFAULT_S))
        if not (raw.isascii() and raw.isdigit() and len(raw) < 4):
            raise HTTPError(400, "INVALID_REQUEST")
        duration_s = int(raw)
        if not 1 <= duration_s <= _PROFILE_MAX_S:
            raise HTTPError(400, "INVALID_REQUEST")
        if self._running:
            return _text("profiling is already in use", 500)
        self._running = True
        profiler = cProfile.Profile()
        profiler.enable()
        try:
            await asyncio.sleep(duration_s)
        finally:
            profiler.disable()
            self._running = False
        output = io.StringIO()
        pstats.Stats(profiler, stream=output).sort_stats("cumulative").print_stats(_LISTED_MAX)
        return _text(output.getvalue())


async def _free_memory(request: Request) -> Reply:
    gc.collect()
    # What a deep window has freed stays with the C library until it is asked for; other
    # platforms' libraries may have no such call, and need none.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return EMPTY
