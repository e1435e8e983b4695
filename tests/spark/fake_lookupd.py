"""A lookupd that knows what it is told: ``/lookup`` and ``/nodes`` over real HTTP."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from nsqpy.client.nodes import NodeAddress

__all__ = ["running_lookupd"]


@contextmanager
def running_lookupd(topics: dict[str, list[str]]) -> Iterator[str]:
    """Its address, while it runs. ``topics`` has the HTTP addresses of each topic's nodes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            (topic,) = parse_qs(url.query).get("topic", [""])
            if url.path == "/lookup" and topic not in topics:
                self._answer(404, {"message": "TOPIC_NOT_FOUND"})
                return
            nodes = (
                topics[topic] if topic else sorted({n for all_ in topics.values() for n in all_})
            )
            self._answer(200, {"producers": [_producer(node) for node in nodes]})

        def _answer(self, status: int, value: object) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def _producer(node: str) -> dict[str, object]:
    address = NodeAddress.parse(node)
    return {"broadcast_address": address.host, "http_port": address.port, "tcp_port": 4150}
