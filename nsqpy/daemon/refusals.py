"""What the core refuses, as answers of the HTTP API."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from nsqpy.core.catalogue import NotFoundError
from nsqpy.core.topic import ExitingError
from nsqpy.errors import StorageError
from nsqpy.net.http import HTTPError

__all__ = ["refusals"]

log = logging.getLogger(__name__)


@contextmanager
def refusals(*, if_storage: tuple[int, str] = (500, "INTERNAL_ERROR")) -> Iterator[None]:
    """Turn the core's errors into HTTPErrors; ``if_storage`` is status and code of a disk that
    refuses."""
    try:
        yield
    except NotFoundError as error:
        raise HTTPError(404, f"{error.kind.upper()}_NOT_FOUND") from None
    except ExitingError:
        raise HTTPError(503, "EXITING") from None
    except StorageError as error:
        log.error("%s", error)
        raise HTTPError(*if_storage) from error
