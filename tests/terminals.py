"""What a program writes to a pseudo-terminal."""

import os


def read_all(leader: int) -> bytes:
    """All bytes that a terminal is sent until the program lets go of it. The leader is closed."""
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # how Linux says that the other side is closed
            part = b""
        if not part:
            os.close(leader)
            return b"".join(parts)
        parts.append(part)
