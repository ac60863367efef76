"""A Hub on this machine: the routes of huggingface.co that huggingface_hub asks for, and a log of what was asked."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

REVISION = "0123456789abcdef0123456789abcdef01234567"


@dataclass(slots=True, kw_only=True)
class Repository:
    """The files of a model. `gated` refuses all of them, `cut` ends the connection half-way through a file."""

    files: Mapping[str, bytes]
    gated: bool = False
    cut: str | None = None


@dataclass(slots=True)
class Hub:
    """Repositories by name, where they are served, and every request in order."""

    repositories: dict[str, Repository]
    url: str = ""
    asked: list[str] = field(default_factory=list)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """One request: the description of a model, or one of its files."""
        path = unquote(urlsplit(handler.path).path)
        self.asked.append(f"{handler.command} {path}")
        if path.startswith("/api/models/"):
            name, _, rest = path.removeprefix("/api/models/").partition("/revision/")
            self._describe(handler, name, rest)
            return
        name, _, rest = path.removeprefix("/").partition("/resolve/")
        self._file(handler, name, rest.partition("/")[2])

    def _describe(self, handler: BaseHTTPRequestHandler, name: str, _: str) -> None:
        found = self.repositories.get(name)
        if found is None:
            _refuse(handler, 404, "RepoNotFound")
            return
        siblings = [{"rfilename": file, "size": len(content)} for file, content in found.files.items()]
        _send(handler, json.dumps({"id": name, "sha": REVISION, "siblings": siblings}).encode(), "application/json")

    def _file(self, handler: BaseHTTPRequestHandler, name: str, file: str) -> None:
        found = self.repositories.get(name)
        if found is None:
            _refuse(handler, 404, "RepoNotFound")
        elif found.gated:
            _refuse(handler, 403 if handler.headers.get("Authorization") else 401, "GatedRepo")
        elif file not in found.files:
            _refuse(handler, 404, "EntryNotFound")
        else:
            _send(handler, found.files[file], "application/octet-stream", cut=found.cut == file)


def _send(handler: BaseHTTPRequestHandler, content: bytes, kind: str, *, cut: bool = False) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(content)))
    handler.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
    handler.send_header("X-Repo-Commit", REVISION)
    handler.end_headers()
    if handler.command == "GET":
        handler.wfile.write(content[: len(content) // 2] if cut else content)
    if cut:
        handler.close_connection = True


def _refuse(handler: BaseHTTPRequestHandler, status: int, code: str) -> None:
    handler.send_response(status)
    handler.send_header("X-Error-Code", code)
    handler.send_header("X-Error-Message", f"refused: {code}")
    handler.send_header("Content-Length", "0")
    handler.end_headers()


@contextmanager
def running_hub(repositories: Mapping[str, Repository]) -> Iterator[Hub]:
    """The Hub on a free port, until the block ends."""
    hub = Hub(dict(repositories))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            hub.answer(self)

        def do_HEAD(self) -> None:
            hub.answer(self)

        def log_message(self, *_: object) -> None:
            """Quiet: `asked` is the log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
