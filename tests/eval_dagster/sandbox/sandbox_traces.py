"""The traces of a program: processes whose command has a word."""

import psutil


def processes_with(word: str) -> list[list[str]]:
    """The commands of all processes that have the word."""
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if any(word in part for part in line):
            found.append(line)
    return found
