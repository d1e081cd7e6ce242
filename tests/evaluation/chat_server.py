"""A small real HTTP server that speaks OpenAI's chat protocol, or fails as servers do."""

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GOOD = "Relevance: 4\nConsistency: 5\nFluency: 3\nCoherence: 2"


class Answer:
    """A response: a reply of the model, or any status, headers and body."""

    def __init__(self, text: str = GOOD, *, finish_reason: str = "stop", **message) -> None:
        self.status, self.headers = 200, {"Content-Type": "application/json"}
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text, **message},
            "finish_reason": finish_reason,
        }
        usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        body = {"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage}
        self.body = json.dumps(body).encode()
        self.delay_s = 0.0
        self.drop = False


def failing(status: int, message: str = "not now", **headers: str) -> Answer:
    """An error response in OpenAI's format."""
    answer = Answer()
    answer.status = status
    answer.headers |= {name.replace("_", "-"): value for name, value in headers.items()}
    answer.body = json.dumps({"error": {"message": message}}).encode()
    return answer


def plain(body: bytes, kind: str = "text/html") -> Answer:
    """Status 200 with any body."""
    answer = Answer()
    answer.body, answer.headers = body, {"Content-Type": kind}
    return answer


def dropped() -> Answer:
    """The connection closes without a response."""
    answer = Answer()
    answer.drop = True
    return answer


def late(seconds: float) -> Answer:
    """A good answer after a delay."""
    answer = Answer()
    answer.delay_s = seconds
    return answer


class ChatServer:
    """Serves on a free local port; `behave(number, prompt)` answers request `number`."""

    def __init__(self, behave: Callable[[int, str], Answer] = lambda number, prompt: Answer()):
        self.behave = behave
        self.prompts: list[str] = []
        self.bodies: list[dict] = []
        self.keys: list[str] = []
        self.times: list[float] = []
        self.most_at_once = self._now = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer._serve(self, body)

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> "ChatServer":
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _serve(self, handler: BaseHTTPRequestHandler, body: dict) -> None:
        prompt = body["messages"][0]["content"]
        with self._lock:
            number = len(self.prompts)
            self.prompts.append(prompt)
            self.bodies.append(body)
            self.keys.append(handler.headers["Authorization"])
            self.times.append(time.monotonic())
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        answer = self.behave(number, prompt)
        time.sleep(answer.delay_s)
        with self._lock:
            self._now -= 1
        if answer.drop:
            handler.connection.close()
            return
        try:
            handler.send_response(answer.status)
            for name, value in answer.headers.items():
                handler.send_header(name, value)
            handler.send_header("Content-Length", str(len(answer.body)))
            handler.end_headers()
            handler.wfile.write(answer.body)
        except OSError:
            pass  # the client has disconnected
