"""A file that forgets a process or a connection fails itself, and no other one."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LEAKS = {
    "process": """
        import subprocess, sys

        def test_a_process_is_left():
            process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
            process.myself = process
    """,
    "connection": """
        import socket

        def test_a_connection_is_left():
            holder = [socket.socket()]
            holder.append(holder)
    """,
}


@pytest.mark.parametrize("what", LEAKS)
def test_a_leak_is_the_error_of_its_file(what: str, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(f"import sys\nsys.path.insert(0, {str(TESTS)!r})\nfrom leaks import files_close_what_they_open\n")
    (tmp_path / "test_first.py").write_text(textwrap.dedent(LEAKS[what]))
    (tmp_path / "test_second.py").write_text("def test_nothing(): pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "ERROR test_first.py::" in done.stdout
    assert "ResourceWarning" in done.stdout
    assert "test_second.py::" not in done.stdout
    assert "2 passed, 1 error" in done.stdout
