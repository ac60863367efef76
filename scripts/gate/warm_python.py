"""A Python that has imported torch and transformers already: each command is a fork of it.

    python scripts/gate/warm_python.py FOLDER [MODULE ...]     in Python: with warm_python(sys.executable) as folder:

Makes FOLDER/socket, and FOLDER/python and FOLDER/llm-perf-opt, which take the arguments of a Python and of the command
and are answered by a fork of the server. The fork has the caller's folder, environment and streams, imports the package
under test itself, and ends as any process does, so its exit code and its output are the command's. What a fork cannot
show is the command's own start; whoever tests that calls the real interpreter, and so do the two clients where no
server listens. Signals sent to a client do not reach the command; a client that is killed takes its command with it.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import importlib.util
import json
import os
import runpy
import selectors
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

PRELOADED = ("numpy", "PIL.Image", "torch", "torch._dynamo", "torch.distributed.tensor", "transformers.modeling_utils")
CPU_SECONDS = "WARM_CPU_SECONDS"  # an environment variable of the caller's: the file that gets a line for each command
_SIZE = struct.Struct("!I")
_STREAMS = 3

# A client starts hundreds of times, so it imports only what is built in and tells its story in few calls.
_CLIENT = """#!{python} -IS
import array, json, os, socket, struct, sys
words = {words!r} + sys.argv[1:]
peer = socket.socket(socket.AF_UNIX)
try:
    peer.connect({address!r})
except OSError:
    os.execv({python!r}, [{python!r}] + words)
text = json.dumps([words, os.getcwd(), dict(os.environ)], ensure_ascii=True).encode()
streams = []
for number in range(3):
    try:
        os.fstat(number)
        streams.append(number)
    except OSError:
        streams.append(os.open(os.devnull, os.O_RDWR))
peer.sendmsg([struct.pack("!I", len(text))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))])
peer.sendall(text)
code = peer.recv(4)
os._exit(struct.unpack("!i", code)[0] if len(code) == 4 else 70)
"""


@contextlib.contextmanager
def warm_python(python: str, preloaded: tuple[str, ...] = PRELOADED) -> Iterator[Path]:
    """The folder of the clients of a server, which runs as long as the context; it preloads what is installed."""
    with tempfile.TemporaryDirectory(prefix="warm-") as name:
        command = [python, "-P", str(Path(__file__).resolve()), name, *preloaded]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None  # for type checkers: a pipe was asked for
        try:
            if server.stdout.readline() != "ready\n":
                raise SystemExit(f"The warm Python of {python} did not start.")
            yield Path(name)
        finally:
            server.terminate()
            server.wait()
            server.stdout.close()


class _Job:
    """What a client asks for, in the fork that does it."""

    def __init__(self, words: list[str], folder: str, environment: dict[str, str]) -> None:
        self.words, self.folder, self.environment = words, folder, environment


def main() -> None:
    place = Path(sys.argv[1])
    for name in sys.argv[2:] or PRELOADED:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    job = serve(place)
    if job is not None:  # this is a fork: from here on it is the command
        _become(job)


def write_clients(place: Path) -> None:
    """The two executables, which know where the server listens."""
    place.mkdir(parents=True, exist_ok=True)
    for name, words in (("python", []), ("llm-perf-opt", ["-m", "llm_perf_opt"])):
        file = place / name
        file.write_text(_CLIENT.format(python=sys.executable, words=words, address=str(place / "socket")), "utf-8")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)


def serve(place: Path) -> _Job | None:
    """Answer until SIGTERM. Comes back with a job in each fork, and with None in the server itself."""
    write_clients(place)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(place / "socket"))
    listener.listen(64)
    awake, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler, so that the descriptor above wakes the loop
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    gc.collect()
    gc.freeze()  # what the forks share is never written to by a collection
    print("ready", flush=True)
    return _Server(listener, awake).run()


class _Server:
    def __init__(self, listener: socket.socket, awake: socket.socket) -> None:
        self.listener, self.awake = listener, awake
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ)
        self.selector.register(awake, selectors.EVENT_READ)
        self.clients: dict[int, socket.socket | None] = {}  # process -> who waits for it, None: nobody any more
        self.times: dict[int, str | None] = {}  # process -> where its CPU seconds go

    def run(self) -> _Job | None:
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.listener:
                    job = self._accept()
                    if job is not None:
                        return job
                elif key.fileobj is self.awake:
                    self.awake.recv(4096)
                    self._reap()
                else:
                    self._lost(key.data)

    def _accept(self) -> _Job | None:
        client, _ = self.listener.accept()
        try:
            job, streams = _read(client)
        except (OSError, ValueError):  # a client that was killed while it asked
            client.close()
            return None
        process = os.fork()
        if process == 0:
            self._close_all(client)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            for stream in streams:
                os.close(stream)
            return job
        for stream in streams:
            os.close(stream)
        self.clients[process] = client
        self.times[process] = job.environment.get(CPU_SECONDS)
        self.selector.register(client, selectors.EVENT_READ, process)
        return None

    def _close_all(self, client: socket.socket) -> None:
        self.selector.close()
        signal.set_wakeup_fd(-1)
        for opened in (self.listener, self.awake, client, *filter(None, self.clients.values())):
            opened.close()

    def _reap(self) -> None:
        while self.clients:
            process, status, used = os.wait4(-1, os.WNOHANG)
            if process == 0:
                return
            client = self.clients.pop(process)
            times_file = self.times.pop(process)
            if times_file:
                with Path(times_file).open("a") as times:
                    times.write(f"{used.ru_utime + used.ru_stime}\n")
            if client is None:  # killed by `_lost`
                continue
            self.selector.unregister(client)
            code = os.waitstatus_to_exitcode(status)
            with contextlib.suppress(OSError):  # the client was killed at this very moment
                client.sendall(struct.pack("!i", code if code >= 0 else 128 - code))
            client.close()

    def _lost(self, process: int) -> None:
        """A client closed its end: it was killed, and its command goes too."""
        client = self.clients[process]
        assert client is not None  # who is lost is not watched any more
        self.selector.unregister(client)
        client.close()
        self.clients[process] = None
        os.kill(process, signal.SIGKILL)


def _read(client: socket.socket) -> tuple[_Job, list[int]]:
    message, control, _, _ = client.recvmsg(_SIZE.size, socket.CMSG_SPACE(_STREAMS * array.array("i").itemsize))
    streams = array.array("i")
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            streams.frombytes(data[: len(data) - len(data) % streams.itemsize])
    if len(message) != _SIZE.size or len(streams) != _STREAMS:
        raise ValueError("not a whole request")
    left = _SIZE.unpack(message)[0]
    text = b""
    while len(text) < left:
        piece = client.recv(left - len(text))
        if not piece:
            raise ValueError("not a whole request")
        text += piece
    return _Job(*json.loads(text)), list(streams)


def _become(job: _Job) -> None:
    """Take over the caller's place and run what was asked for, as an interpreter that starts would."""
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    own_paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    os.environ.clear()
    os.environ.update(job.environment)
    os.chdir(job.folder)
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        errors = {"stdin": "strict", "stdout": "strict", "stderr": "backslashreplace"}[name]
        stream = open(number, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115  open to the end
        if name == "stderr" or stream.isatty():
            stream.reconfigure(line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    asked_paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    installed = [path for path in sys.path[1:] if path not in own_paths]  # the first is the server's folder
    sys.path[:] = [*asked_paths, *installed]
    importlib.invalidate_caches()
    _run(job.words)


def _run(words: list[str]) -> None:
    """`[-P] -c CODE`, `[-P] -m MODULE` or `FILE`, and their arguments."""
    is_safe = False
    while words and words[0] in ("-P", "-I", "-u"):
        is_safe = is_safe or words[0] != "-u"
        words = words[1:]
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path[:0] = [] if is_safe else [""]
        main_module = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec"), main_module.__dict__)
    elif words[0] == "-m":
        sys.argv = words[1:]
        sys.path[:0] = [] if is_safe else [str(Path.cwd())]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[:0] = [] if is_safe else [str(Path(words[0]).resolve().parent)]
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
