"""Runs programs on this machine in place of eval-framework's containers."""

import subprocess
import sys
import tempfile
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

__all__ = ["TimeoutExpired", "execute", "run_local"]
COMMANDS = {
    "cpp": "g++ -std=c++17 code.cpp -o program && ./program",
    "js": "node code.js",
    "php": "php code.php",
    "sh": "bash code.sh",
}


def run_local(code: str, timeout: int) -> str:
    """Run a program of Python; its standard error and output."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "program.py").write_text(code)
        command = [sys.executable, "program.py"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=folder, check=False)
    return (ended.stderr + ended.stdout).strip()


def execute(context: Any, completion: str, timeout: int) -> tuple[bool, str]:
    """Run a program of another language."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / f"code.{context.language}").write_text(context.prompt + completion + "\n" + context.tests)
        command = COMMANDS[context.language]
        ended = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False)
    return ended.returncode == 0, ended.stdout + ended.stderr
