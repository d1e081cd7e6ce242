"""An S3 server and a web server with TLS on loopback, both with faults to order."""

import io
import os
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce the rate.</Message></Error>"
KEYS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_MAX_ATTEMPTS": "1",
}


Fault = str | Callable[[], object]


class Faults:
    """WSGI middleware: the next requests that fit get a fault in place of, or in, their answer.

    `requests` counts them all by method and path. A fault is "throttled", "cut" (the connection
    ends in the middle of the answer), "half" (the server takes only half of what is sent), or a
    function that is called while the client still sends.
    """

    def __init__(self, app: Any) -> None:
        self._app, self._lock = app, threading.Lock()
        self._waiting: list[tuple[Fault, str, str]] = []
        self.requests: list[tuple[str, str, str]] = []

    def order(self, fault: Fault, method: str, part: str, times: int = 1) -> None:
        """Let the next `times` requests of a method whose path holds `part` fail."""
        self._waiting += [(fault, method, part)] * times

    @property
    def are_over(self) -> bool:
        """Whether all that was ordered has happened."""
        return not self._waiting

    def _taken(self, method: str, path: str) -> Fault | None:
        with self._lock:
            for waiting in self._waiting:
                if waiting[1] == method and waiting[2] in path:
                    self._waiting.remove(waiting)
                    return waiting[0]
        return None

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append((method, path, environ.get("HTTP_RANGE", "")))
        fault = self._taken(method, path)
        if callable(fault):
            fault()
        if fault == "throttled" or callable(fault):
            start("503 Slow Down", [("Content-Type", "application/xml")])
            return [SLOW_DOWN]
        if fault == "half":
            length = int(environ["CONTENT_LENGTH"])
            body = environ["wsgi.input"].read(length)[: length // 2]
            environ["wsgi.input"], environ["CONTENT_LENGTH"] = io.BytesIO(body), str(len(body))
        answer = self._app(environ, start)
        return self._cut(answer) if fault == "cut" else answer

    @staticmethod
    def _cut(answer: Iterable[bytes]) -> Iterator[bytes]:
        content = b"".join(answer)
        yield content[: len(content) // 2]
        raise ConnectionAbortedError("cut by the test")


@contextmanager
def s3_server() -> Iterator[tuple[str, Faults]]:
    """A server of moto with a bucket `corpus`: its address, and the faults to order."""

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *_: object) -> None:
            """Nothing."""

    faults = Faults(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, faults, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", faults
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Files(BaseHTTPRequestHandler):
    """Serves a folder's files, by ranges where `ranges` says so; cuts the answers in `cuts`."""

    protocol_version = "HTTP/1.1"
    folder: Path
    ranges = True
    cuts = 0

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = self.folder / self.path.partition("?")[0].lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        content, status = path.read_bytes(), 200
        wanted = self.headers.get("Range")
        if wanted and self.ranges:
            first, last = wanted.removeprefix("bytes=").split("-")
            content, status = content[int(first) : int(last) + 1], 206
        self.send_response(status)
        if path.suffix == ".gz":  # as Apache does
            self.send_header("Content-Encoding", "gzip") if body else None
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if not body:
            return
        if type(self).cuts and len(content) > 1000:
            type(self).cuts -= 1
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
            return
        self.wfile.write(content)


@contextmanager
def https_server(folder: Path, keys: Path) -> Iterator[tuple[str, Path, type[_Files]]]:
    """A web server with TLS of a folder's files: its address, the CA to trust, its settings.

    `keys` is a folder for the keys. The certificate is signed by itself.
    """
    certificate, key = keys / "ca.pem", keys / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", key, "-out", certificate],
        check=True, capture_output=True, env={**os.environ, "OPENSSL_CONF": os.devnull},
    )  # fmt: skip
    handler = type("Handler", (_Files,), {"folder": folder})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://localhost:{server.server_address[1]}", certificate, handler
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
