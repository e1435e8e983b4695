"""HTTP as the daemons share it: routes, replies in the original's form, listeners.

A daemon gives ``HTTPServer`` a table ``{path: {method: Route}}``; a handler takes a ``Request``
and returns a ``Reply``, or raises ``HTTPError``. Unknown paths, wrong methods, ``OPTIONS`` and
unclean paths are answered here, by the same rules for every daemon. A path ending in ``/*``
takes any one segment there, which is then ``Request.segment``.

The way of a request: ``connections`` (aiohttp's parser, and how long anything may take),
``server``, ``routes``, a handler with its ``requests``, and ``replies`` or ``files`` back.

This stands on aiohttp's low-level server. A reply is encoded here and written as it is: measured
with an empty handler, a ``POST /pub`` costs 28 us of processor time that way, 42 us with aiohttp's
``Response`` and 49 us with its ``Application`` as well.

Source: internal/http_api; julienschmidt/httprouter for redirects.
"""

from nsqpy.net.http.files import FileReply
from nsqpy.net.http.replies import EMPTY, OK, HTTPError, Reply, json_reply, text_reply
from nsqpy.net.http.requests import Request, argument, legal_name, log_request, parse_query
from nsqpy.net.http.routes import ClosedRouter, Handler, Route, Router
from nsqpy.net.http.server import HTTPServer

__all__ = [
    "EMPTY",
    "OK",
    "ClosedRouter",
    "FileReply",
    "HTTPError",
    "HTTPServer",
    "Handler",
    "Reply",
    "Request",
    "Route",
    "Router",
    "argument",
    "json_reply",
    "legal_name",
    "log_request",
    "parse_query",
    "text_reply",
]
