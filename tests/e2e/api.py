"""The scripted Messages API on loopback, which records everything it served.

Rules:

- Every response has its own message id, request id and token counts, so that no two responses of a run are confused.
- Each response is written to `truth.jsonl` when it ends, as `event=response`, including errors and responses during
  which the client closed the connection (`aborted`). The first return of a tool result is `event=tool_result`.
- Stories wait for requests and responses (`wait_for`); they never sleep.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from .api_request import CONTINUED, ApiRequest, read_request
from .scripts import Block, Reply, reply_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FIRST_BYTE_S = 0.12
BLOCK_S = 0.06
HELD_DELTA_S = 0.05
HELD_MAX_S = 30.0
ERROR_TYPES = {400: "invalid_request_error", 401: "authentication_error", 500: "api_error", 529: "overloaded_error"}


class WaitError(AssertionError):
    """Something that a story waited for did not happen in time."""


def usage_of(n: int, reply: Reply) -> dict[str, Any]:
    """Return the token counts of the n-th response. Each class grows by its own step, so that sums are distinct, too."""
    five, hour = 300 + 11 * n, 40 + 2 * n
    usage: dict[str, Any] = {
        "input_tokens": 1000 + 7 * n,
        "cache_creation_input_tokens": five + hour,
        "cache_read_input_tokens": max(20000, reply.context) + 13 * n,
        "output_tokens": 50 + 17 * n,
        "service_tier": "standard",
        "cache_creation": {"ephemeral_5m_input_tokens": five, "ephemeral_1h_input_tokens": hour},
    }
    searches = sum(b["type"] == "server_tool_use" for b in reply.blocks)
    if searches:
        usage["server_tool_use"] = {"web_search_requests": searches, "web_fetch_requests": 0}
    return usage


class Api:
    """The server, a context manager."""

    def __init__(self, truth: Path, cwd: Path, bodies: Path | None = None) -> None:
        self.cwd = cwd
        self.seen: list[dict[str, Any]] = []  # requests, responses and tool results, in order
        self._truth = truth.open("a", buffering=1)
        self._bodies = bodies
        self._changed = threading.Condition()
        self._n = 0
        self._attempts: dict[tuple[Any, ...], int] = {}
        self._returned: set[str] = set()
        self._turns: dict[str | None, str | None] = {}  # session → the current turn of its main conversation
        self._let_go = threading.Event()
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_: object) -> None:
                pass

            def do_HEAD(self) -> None:
                _send_json(self, 200, {})

            def do_GET(self) -> None:
                _send_json(self, 200, {})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
                if self.path.split("?")[0].endswith("/count_tokens"):
                    _send_json(self, 200, {"input_tokens": 21000})
                elif self.path.split("?")[0].endswith("/v1/messages"):
                    api.answer(self, body)
                else:
                    _send_json(self, 404, {"type": "error", "error": {"type": "not_found_error", "message": self.path}})

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go.set()
        self._server.shutdown()
        self._server.server_close()
        self._truth.close()

    # ---- for stories

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool], what: str, timeout_s: float = 30) -> dict[str, Any]:
        """Wait for an event that matches; return it."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                found = next((e for e in self.seen if wanted(e)), None)
                if found is not None:
                    return found
                if not self._changed.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    raise WaitError(f"the API did not see {what} in {timeout_s:.0f} s")

    def wait_request(
        self, turn: str, step: int = 0, script: str | None = None, timeout_s: float = 30
    ) -> dict[str, Any]:
        """Wait for a request of a turn."""

        def wanted(e: dict[str, Any]) -> bool:
            here = e["event"] == "request" and not e["aux"] and e["step"] == step
            return here and e["turn"] == turn and (script is None or e["script"] == script)

        return self.wait_for(wanted, f"step {step} of {turn}", timeout_s)

    def wait_response(self, turn: str, step: int = 0, timeout_s: float = 30) -> dict[str, Any]:
        """Wait for the end of a response of a turn."""

        def wanted(e: dict[str, Any]) -> bool:
            here = e["event"] == "response" and not e["aux"] and e["http_status"] == 200
            return here and e["turn"] == turn and e["step"] == step

        return self.wait_for(wanted, f"the response to step {step} of {turn}", timeout_s)

    def let_go(self) -> None:
        """End all held streams."""
        self._let_go.set()

    # ---- for the client

    def answer(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        """Answer one request and record it."""
        t_request = time.time()
        headers = {k.lower(): v for k, v in handler.headers.items()}
        request = self._placed(read_request(body, headers))
        reply, n = self._admit(request, t_request)
        if self._bodies:
            kept = json.dumps({"n": n, "headers": headers, "body": body}, indent=1)
            (self._bodies / f"{n:03}.json").write_text(kept)
        message = _message(n, request, reply, self.cwd) if reply.status == 200 else None
        row = _row(n, t_request, request, reply, message)
        try:
            time.sleep(FIRST_BYTE_S)
            row["t_first_byte"] = time.time()
            if message is None:
                error = {"type": ERROR_TYPES.get(reply.status, "api_error"), "message": reply.error}
                _send_json(handler, reply.status, {"type": "error", "error": error}, row["request_id"])
            elif not request.stream:
                row["t_first_token"] = time.time()
                row["block_end"] = [time.time() for _ in message["content"]]
                _send_json(handler, 200, message, row["request_id"])
            else:
                self._stream(handler, message, reply, row)
        except OSError:
            row["aborted"] = True
        row["t_end"] = time.time()
        self._note(row)

    def _placed(self, request: ApiRequest) -> ApiRequest:
        """Assign a request that begins with a summary to the turn during which the client compacted."""
        with self._changed:
            if request.turn == CONTINUED:
                return replace(request, turn=self._turns.get(request.session_id))
            if request.turn is not None and not request.aux:
                self._turns[request.session_id] = request.turn
        return request

    def _admit(self, request: ApiRequest, t_request: float) -> tuple[Reply, int]:
        reply = reply_to(request)
        with self._changed:
            self._n += 1
            n = self._n
            key = (
                request.session_id,
                request.parent_tool_use_id,
                request.turn,
                request.script,
                request.step,
                request.aux,
            )
            tries = self._attempts[key] = self._attempts.get(key, 0) + 1
            for back in request.returned:
                if back.tool_use_id not in self._returned:
                    self._returned.add(back.tool_use_id)
                    self._write({
                        "event": "tool_result", "tool_use_id": back.tool_use_id, "is_error": back.is_error,
                        "text": back.text[:4000], "text_len": len(back.text), "t_seen": t_request,
                    })  # fmt: skip
            self.seen.append({
                "event": "request", "n": n, "aux": request.aux, "turn": request.turn, "script": request.script,
                "step": request.step, "thread": request.thread, "session_id": request.session_id, "try": tries,
                "parent_tool_use_id": request.parent_tool_use_id, "queued": list(request.queued),
            })  # fmt: skip
            self._changed.notify_all()
        return _after_failures(reply, tries), n

    def _note(self, row: dict[str, Any]) -> None:
        with self._changed:
            self._write(row)
            self._changed.notify_all()

    def _write(self, row: dict[str, Any]) -> None:
        self.seen.append(row)
        self._truth.write(json.dumps(row) + "\n")

    def _stream(
        self, handler: BaseHTTPRequestHandler, message: dict[str, Any], reply: Reply, row: dict[str, Any]
    ) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream; charset=utf-8")
        handler.send_header("request-id", row["request_id"])
        handler.send_header("connection", "close")
        handler.end_headers()
        handler.close_connection = True

        def emit(event: dict[str, Any]) -> None:
            data = json.dumps(event, ensure_ascii=False)
            handler.wfile.write(f"event: {event['type']}\ndata: {data}\n\n".encode())
            handler.wfile.flush()

        usage = message["usage"]
        begun = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
        emit({"type": "message_start", "message": begun})
        row["t_first_token"] = time.time()
        for index, block in enumerate(message["content"]):
            emit({"type": "content_block_start", "index": index, "content_block": _opened(block)})
            deltas = list(_deltas(block))
            if reply.cut and index == len(message["content"]) - 1:
                emit({"type": "content_block_delta", "index": index, "delta": deltas[0]})
                row["aborted"] = row["cut"] = True
                return
            for delta in deltas:
                emit({"type": "content_block_delta", "index": index, "delta": delta})
                time.sleep(BLOCK_S / len(deltas))
            if reply.holds:
                with self._changed:
                    self.seen.append({"event": "holding", "n": row["n"], "turn": row["turn"]})
                    self._changed.notify_all()
                self._hold(
                    lambda at=index: emit(
                        {"type": "content_block_delta", "index": at, "delta": {"type": "text_delta", "text": "More. "}}
                    )
                )
            emit({"type": "content_block_stop", "index": index})
            row["block_end"].append(time.time())
        emit(
            {
                "type": "message_delta",
                "delta": {"stop_reason": message["stop_reason"], "stop_sequence": None},
                "usage": usage,
            }
        )
        emit({"type": "message_stop"})

    def _hold(self, emit_more: Callable[[], None]) -> None:
        deadline = time.monotonic() + HELD_MAX_S
        while not self._let_go.wait(HELD_DELTA_S) and time.monotonic() < deadline:
            emit_more()


def _after_failures(reply: Reply, tries: int) -> Reply:
    """Return the reply for this attempt: after `fails` failures it succeeds."""
    if reply.fails and tries > reply.fails:
        return Reply(reply.blocks, reply.stop_reason)
    return reply


def _message(n: int, request: ApiRequest, reply: Reply, cwd: Path) -> dict[str, Any]:
    content: list[Block] = []
    for block in reply.blocks:
        made = json.loads(json.dumps(block).replace("@CWD@", str(cwd)).replace("@N@", uuid.uuid4().hex[:20]))
        if block["type"] == "text" and not request.aux:
            made["text"] += f" [r{n}]"
        if block["type"] == "tool_use":
            made["id"] = f"toolu_{uuid.uuid4().hex[:22]}"
            made = json.loads(json.dumps(made).replace("@CALL@", made["id"]))
        content.append(made)
    for i, block in enumerate(content):  # the result of a search refers to the search before it
        if block["type"] == "web_search_tool_result":
            block["tool_use_id"] = content[i - 1]["id"]
    return {
        "id": f"msg_{uuid.uuid4().hex[:24]}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": content,
        "stop_reason": reply.ends_with,
        "stop_sequence": None,
        "usage": usage_of(n, reply),
    }


def _row(n: int, t_request: float, request: ApiRequest, reply: Reply, message: dict[str, Any] | None) -> dict[str, Any]:
    content = message["content"] if message else []
    row = {
        "event": "response",
        "n": n,
        "t_request": t_request,
        "message_id": message and message["id"],
        "request_id": f"req_{uuid.uuid4().hex[:20]}",
        "model": request.model,
        "thread": request.thread,
        "parent_tool_use_id": request.parent_tool_use_id,
        "aux": request.aux,
        "turn": request.turn,
        "turn_kind": request.turn_kind,
        "queued": list(request.queued),
        "session_id": request.session_id,
        "script": request.script,
        "step": request.step,
        "tools_n": len(request.tools),
        "max_tokens": request.max_tokens,
        "stream": request.stream,
        "http_status": reply.status,
        "aborted": False,
        "attempt": request.attempt,
        "usage": message and message["usage"],
        "content": content,
        "tool_uses": [
            {"id": b["id"], "name": b["name"], "input": b["input"], "index": i}
            for i, b in enumerate(content)
            if b["type"] == "tool_use"
        ],
        "stop_reason": message and message["stop_reason"],
        "block_end": [],
    }
    if reply.status != 200:
        row["error"] = reply.error
    return row


def _opened(block: Block) -> Block:
    """Return a block as in `content_block_start`: empty if deltas follow."""
    if block["type"] == "text":
        return {"type": "text", "text": ""}
    if block["type"] == "thinking":
        return {"type": "thinking", "thinking": "", "signature": ""}
    if block["type"] in ("tool_use", "server_tool_use"):
        return {**block, "input": {}}
    return block


def _deltas(block: Block) -> Iterator[dict[str, Any]]:
    if block["type"] == "text":
        half = len(block["text"]) // 2
        yield {"type": "text_delta", "text": block["text"][:half]}
        yield {"type": "text_delta", "text": block["text"][half:]}
    elif block["type"] == "thinking":
        yield {"type": "thinking_delta", "thinking": block["thinking"]}
        yield {"type": "signature_delta", "signature": block["signature"]}
    elif block["type"] in ("tool_use", "server_tool_use"):
        arguments = json.dumps(block["input"])
        yield {"type": "input_json_delta", "partial_json": arguments[: len(arguments) // 2]}
        yield {"type": "input_json_delta", "partial_json": arguments[len(arguments) // 2 :]}


def _send_json(handler: BaseHTTPRequestHandler, status: int, value: dict[str, Any], request_id: str = "") -> None:
    raw = json.dumps(value).encode()
    handler.send_response(status)
    handler.send_header("content-type", "application/json")
    handler.send_header("content-length", str(len(raw)))
    if request_id:
        handler.send_header("request-id", request_id)
        handler.send_header("x-should-retry", "true" if status >= 500 else "false")
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(raw)
