"""A folder in the sandbox, in which a model runs programs: a tool of episodes."""

import base64
import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import ClassVar

from eval_dagster.sandbox import Limits, Program, run_python

_MIB = 2**20
_MOST_FILES, _LONGEST_PATH, _LONGEST_NAME = 5_000, 1_000, 255
"""Most files and folders; and most bytes of a path, and of one of its parts."""
_MOST_NAMED = 20
"""Files that an error names."""
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
files, waiting, problem = [], [root], ""
while waiting and not problem:
    folder = waiting.pop()
    os.chmod(folder, 0o700)
    for entry in os.scandir(folder):
        path = os.path.relpath(entry.path, root)
        if entry.is_dir(follow_symlinks=False):
            waiting.append(entry.path)
        elif entry.is_file(follow_symlinks=False):
            mode = entry.stat().st_mode & 0o700
            os.chmod(entry.path, 0o700)
            with open(entry.path, "rb") as file:
                files.append([path, mode | 0o600, base64.b64encode(file.read()).decode()])
        if len(os.fsencode(path)) > {longest} or len(files) + len(waiting) > {files_most}:
            problem = "more than {files_most} files and folders, or a path of more than {longest} bytes"
            break
print(json.dumps([status, base64.b64encode(said).decode(), files, problem]))
"""
"""Puts the files there, runs the command, and prints its status, its output and the files. What it leaves running ends with the sandbox."""


class SandboxFolder:
    """A folder in which a model runs shell commands, for the `TOOLS` of an `EpisodeTask`. Each episode has its own.

    Each command runs in a sandbox of its own, without network and without the processes of earlier commands, and finds the files that they
    left. A command that takes too long or too much memory changes no file, and one that fills the folder gets the error of a full disk.
    Links and empty folders are not kept. The folder is held in memory: nothing of it is on the machine's disk. It needs
    `sandbox: {allow_code_execution: true}` in evals.yaml.

    A class of your own may have one instead of being one, to give a model other tools or files to begin with.
    """

    SECONDS: ClassVar[float] = 30.0
    """Most seconds of a command, computing or sleeping."""
    MEMORY_BYTES: ClassVar[int] = 1024 * _MIB
    """Most memory of a command."""
    DISK_BYTES: ClassVar[int] = 32 * _MIB
    """Most bytes of all files."""
    OUTPUT_BYTES: ClassVar[int] = 20_000
    """Bytes of a command's output, or of a file, that the model is told."""
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
        most = {"most": self.OUTPUT_BYTES, "longest": _LONGEST_PATH, "files_most": _MOST_FILES}
        code = _RUNNER.format(files=json.dumps(held), command=command, **most)
        limits = Limits(
            timeout_s=self.SECONDS, memory_bytes=self.MEMORY_BYTES, disk_bytes=self.DISK_BYTES, output_bytes=2 * self.DISK_BYTES + _MIB
        )
        ended = run_python(Program(code=code), limits)
        if ended.ended_by != "exit":
            seconds, memory = f"{self.SECONDS:g} s", f"{self.MEMORY_BYTES // _MIB} MiB of memory"
            limit = {"timeout": seconds, "memory": memory, "output": "the folder can hold"}[ended.ended_by]
            return f"[stopped: more than {limit}; no file has changed]"
        try:
            status, said, files, problem = json.loads(ended.stdout)
            output = base64.b64decode(said)
            found = {str(path): (int(mode), base64.b64decode(content)) for path, mode, content in files}
        except (ValueError, TypeError):  # the command ended the sandbox, or filled the folder
            return f"[failed: {ended.stderr.strip().rpartition(chr(10))[2] or 'the sandbox ended'}; no file has changed]"
        if problem:
            return f"[failed: {problem}; no file has changed]"
        self._files = found
        text = self._shown(output)
        return text if status == 0 else f"{text.rstrip()}\n[exit status {status}]".lstrip()

    def write(self, path: str, text: str) -> str:
        """Write a text file into your folder."""
        self._put(path, text.encode())
        return f"{len(text.encode()):,} bytes in {path}"

    def read(self, path: str) -> str:
        """Read a text file of your folder."""
        if path not in self._files:
            names = sorted(self._files)
            more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
            raise FileNotFoundError(f"there is no file {path[:200]!r}; the files are: {', '.join(names[:_MOST_NAMED]) or 'none'}{more}")
        return self._shown(self._files[path][1])

    def _shown(self, content: bytes) -> str:
        text = content[: self.OUTPUT_BYTES].decode(errors="replace")
        return text if len(content) <= self.OUTPUT_BYTES else f"{text}\n[cut off after {self.OUTPUT_BYTES:,} bytes]"

    def _put(self, path: str, content: bytes) -> None:
        parts = PurePosixPath(path).parts
        try:
            lengths = [len(part.encode()) for part in parts]
        except UnicodeEncodeError:  # half of a surrogate pair
            lengths = []
        is_possible = bool(lengths) and max(lengths) <= _LONGEST_NAME and sum(lengths) + len(lengths) <= _LONGEST_PATH and "\0" not in path
        if not is_possible or path.startswith("/") or ".." in parts:
            raise ValueError(f"found the path {path[:200]!r}; expected one within the folder, such as data/table.csv")
        name = str(PurePosixPath(path))
        for other in self._files:
            if other.startswith(f"{name}/") or name.startswith(f"{other}/"):
                raise ValueError(f"found the path {path[:200]!r}, and {other!r} is there; expected no file that is also a folder")
        if len(self._files) >= _MOST_FILES and name not in self._files:
            raise ValueError(f"{path[:200]!r} does not fit: the folder may hold {_MOST_FILES:,} files")
        held = sum(len(other) for where, (_, other) in self._files.items() if where != name)
        if held + len(content) > self.DISK_BYTES:
            raise ValueError(f"{path!r} does not fit: the folder may hold {self.DISK_BYTES // _MIB} MiB")
        self._files[name] = (self._files.get(name, (0o600, b""))[0], content)
