"""A folder in the sandbox, in which a model runs programs: a tool of episodes."""

import base64
import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import ClassVar

from eval_dagster.sandbox import Limits, Program, run_python

_MIB = 2**20
_RUNNER = """
import base64, json, os, subprocess, threading
root = "/tmp/folder"
os.mkdir(root)
for path, mode, content in json.loads({files!r}):
    place = os.path.join(root, path)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    with open(place, "wb") as file:
        file.write(base64.b64decode(content))
    os.chmod(place, mode)
environment = {{"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": root, "LANG": "C.UTF-8"}}
streams = {{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}}
process = subprocess.Popen(["/bin/sh", "-c", {command!r}], cwd=root, env=environment, **streams)
said = bytearray()
def listen():
    while part := os.read(process.stdout.fileno(), 65536):
        said.extend(part[: max(0, {most} + 1 - len(said))])
listener = threading.Thread(target=listen, daemon=True)
listener.start()
status = process.wait()
listener.join(0.5)  # a process that goes on may hold the other end
files = []
for folder, _, names in os.walk(root):
    for name in names:
        place = os.path.join(folder, name)
        if os.path.islink(place) or not os.path.isfile(place):
            continue
        with open(place, "rb") as file:
            content = base64.b64encode(file.read()).decode()
        files.append([os.path.relpath(place, root), os.stat(place).st_mode & 0o700, content])
print(json.dumps([status, base64.b64encode(said).decode(), files]))
"""
"""Puts the files there, runs the command, and prints its status, its output and the files. What it leaves running ends with the sandbox."""


class SandboxFolder:
    """A folder in which a model runs shell commands, for the `TOOLS` of an `EpisodeTask`. Each episode has its own.

    Each command runs in a sandbox of its own, without network and without the processes of earlier commands, and finds the files that they
    left. A command that exceeds a limit changes no file. Links and empty folders are not kept. The folder is held in memory: nothing of it
    is on the machine's disk. It needs `sandbox: {allow_code_execution: true}` in evals.yaml.

    A class of your own may have one instead of being one, to give a model other tools or files to begin with.
    """

    SECONDS: ClassVar[float] = 30.0
    """Most seconds of a command, computing or sleeping."""
    MEMORY_BYTES: ClassVar[int] = 1024 * _MIB
    """Most memory of a command."""
    DISK_BYTES: ClassVar[int] = 32 * _MIB
    """Most bytes of all files."""
    OUTPUT_BYTES: ClassVar[int] = 20_000
    """Bytes of a command's output that the model is told."""
    EXECUTES_CODE: ClassVar[bool] = True
    """Tasks with such a tool run only if the project allows code of models to run."""
    IS_REPEATABLE: ClassVar[bool] = False
    """Programs may read the clock or draw at random. So a folder that is made anew by the recorded calls may get other results."""

    def __init__(self, files: Mapping[str, str | bytes] | None = None) -> None:
        """`files` are there at the beginning, by their paths in the folder."""
        self._files: dict[str, tuple[int, bytes]] = {}
        for path, content in (files or {}).items():
            self._put(path, content.encode() if isinstance(content, str) else content)

    @property
    def files(self) -> Mapping[str, bytes]:
        """The contents of all files by their paths in the folder, as for scoring what a model has made."""
        return {path: content for path, (_, content) in self._files.items()}

    def run(self, command: str) -> str:
        """Run a shell command in your folder. Returns what it prints, and its exit status unless it is 0. The network cannot be reached."""
        held = [[path, mode, base64.b64encode(content).decode()] for path, (mode, content) in self._files.items()]
        code = _RUNNER.format(files=json.dumps(held), command=command, most=self.OUTPUT_BYTES)
        limits = Limits(
            timeout_s=self.SECONDS, memory_bytes=self.MEMORY_BYTES, disk_bytes=self.DISK_BYTES, output_bytes=2 * self.DISK_BYTES + _MIB
        )
        ended = run_python(Program(code=code), limits)
        if ended.ended_by != "exit":
            most = {"timeout": f"{self.SECONDS:g} s", "memory": f"{self.MEMORY_BYTES // _MIB} MiB of memory"}
            return f"[stopped: more than {most.get(ended.ended_by, f'{self.DISK_BYTES // _MIB} MiB of files')}; no file has changed]"
        try:
            status, said, files = json.loads(ended.stdout)
            output = base64.b64decode(said)
            found = {str(path): (int(mode), base64.b64decode(content)) for path, mode, content in files}
        except (ValueError, TypeError):  # the command ended the sandbox, or filled the folder
            return f"[failed: {ended.stderr.strip().rpartition(chr(10))[2] or 'the sandbox ended'}; no file has changed]"
        self._files = found
        text = output[: self.OUTPUT_BYTES].decode(errors="replace")
        if len(output) > self.OUTPUT_BYTES:
            text += f"\n[cut off after {self.OUTPUT_BYTES:,} bytes]"
        return text if status == 0 else f"{text.rstrip()}\n[exit status {status}]".lstrip()

    def write(self, path: str, text: str) -> str:
        """Write a text file into your folder."""
        self._put(path, text.encode())
        return f"{len(text.encode()):,} bytes in {path}"

    def read(self, path: str) -> str:
        """Read a text file of your folder."""
        if path not in self._files:
            raise FileNotFoundError(f"there is no file {path!r}; the files are: {', '.join(sorted(self._files)) or 'none'}")
        return self._files[path][1].decode(errors="replace")

    def _put(self, path: str, content: bytes) -> None:
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts:
            raise ValueError(f"found the path {path!r}; expected one within the folder, such as data/table.csv")
        name = str(PurePosixPath(path))
        held = sum(len(other) for where, (_, other) in self._files.items() if where != name)
        if held + len(content) > self.DISK_BYTES:
            raise ValueError(f"{path!r} does not fit: the folder may hold {self.DISK_BYTES // _MIB} MiB")
        self._files[name] = (0o600, content)
