"""Reads members of the `.eval` files of inspect_ai: zip archives, whose members are packed by Zstandard or deflate.

The standard library finds the members, but Python before 3.14 refuses Zstandard, the method 93 of zip.
"""

import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from eval_dagster.errors import DataError, UsageError

_ZSTANDARD = 93
_LOCAL_HEADER = 30
"""Bytes before the name in the header in front of a member."""
_ROOM = 256
"""Bytes that a name and what follows it rarely exceed."""
_SAMPLES, _SUFFIX = "samples/", ".json"
LARGEST = 2**30
"""Most bytes of one member, unpacked."""


def required(name: str) -> Any:
    """A module of the extra `inspect`. Raises `UsageError` if its package is not installed."""
    try:
        return __import__(name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the package {name} is not installed, which reads logs of inspect_ai; install it by `pip install 'eval_dagster[inspect]'`"
        ) from error


@dataclass(frozen=True, slots=True)
class Member:
    """The place of a member in its archive."""

    name: str
    offset: int
    """Bytes before its header."""
    packed: int
    """Its bytes in the archive."""
    size: int
    """Its bytes, unpacked."""
    method: int
    crc: int
    """Checksum of the unpacked bytes."""


class Archive:
    """An open `.eval` file."""

    def __init__(self, file: IO[bytes], members: Mapping[str, Member] | None = None) -> None:
        """Take an open file. Without `members`, its directory is read when it is needed."""
        self._file = file
        self._decompressor: Any = None
        if members is not None:
            self.__dict__["members"] = members

    @cached_property
    def members(self) -> Mapping[str, Member]:
        """The members by name; the last of equal names. Raises `DataError` if the file has no directory."""
        try:
            with zipfile.ZipFile(self._file) as archive:
                return {
                    each.filename: Member(
                        each.filename, each.header_offset, each.compress_size, each.file_size, each.compress_type, each.CRC
                    )
                    for each in archive.infolist()
                }
        except (zipfile.BadZipFile, OSError, ValueError) as error:
            raise DataError(f"which is not a whole zip archive ({error}); expected an `.eval` file of inspect_ai") from error

    def samples(self) -> list[Member]:
        """The members with samples, by name: answers to one sample follow each other."""
        return sorted(
            (each for name, each in self.members.items() if name.startswith(_SAMPLES) and name.endswith(_SUFFIX)),
            key=lambda each: each.name,
        )

    def read(self, member: Member) -> bytes:
        """A member, unpacked.

        Raises:
            DataError: It is damaged, too large, or packed by an unknown method.
        """
        where = f"the member {member.name}"
        if member.size > LARGEST:
            raise DataError(f"{where} has {member.size:,} bytes; expected at most {LARGEST:,}")
        found = os.pread(self._file.fileno(), _LOCAL_HEADER + _ROOM + member.packed, member.offset)
        if len(found) < _LOCAL_HEADER or not found.startswith(b"PK\x03\x04"):
            raise DataError(f"{where} is not where the directory of the archive places it; the file is damaged")
        start = _LOCAL_HEADER + int.from_bytes(found[26:28], "little") + int.from_bytes(found[28:30], "little")
        if len(found) < start + member.packed:
            found = os.pread(self._file.fileno(), start + member.packed, member.offset)
        content = self._unpacked(member, memoryview(found)[start : start + member.packed], where)
        if len(content) != member.size or zlib.crc32(content) != member.crc:
            raise DataError(f"{where} differs from its checksum; the file is damaged")
        return content

    def _unpacked(self, member: Member, packed: memoryview, where: str) -> bytes:
        if member.method == zipfile.ZIP_STORED:
            return bytes(packed)
        try:
            if member.method == zipfile.ZIP_DEFLATED:
                return zlib.decompressobj(-15).decompress(packed, member.size + 1)
            if member.method == _ZSTANDARD:
                if self._decompressor is None:
                    self._decompressor = required("zstandard").ZstdDecompressor()
                return bytes(self._decompressor.decompress(packed, max_output_size=max(member.size, 1)))
        except UsageError:
            raise
        except Exception as error:  # zlib and zstandard have classes of their own
            raise DataError(f"{where} cannot be unpacked ({error}); the file is damaged") from error
        raise DataError(f"{where} is packed by the method {member.method}; expected Zstandard (93), deflate (8) or none (0)")


def batches(members: Sequence[Member], *, most: int, most_bytes: int) -> Iterator[list[Member]]:
    """Members in batches of at most this many, and about so many unpacked bytes."""
    batch: list[Member] = []
    size = 0
    for member in members:
        if batch and (len(batch) >= most or size + member.size > most_bytes):
            yield batch
            batch, size = [], 0
        batch.append(member)
        size += member.size
    if batch:
        yield batch


def log_files(folder: Path) -> list[Path]:
    """The `.eval` files in a folder and the folders in it, or the file itself; sorted. Raises `UsageError` if there is none."""
    found = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*.eval") if path.is_file())
    if not found or found[0].suffix != ".eval":
        where = "is not a file of this kind" if folder.is_file() else "has no such file" if folder.is_dir() else "is not there"
        raise UsageError(f"found {folder}, which {where}; expected a folder with `.eval` files of inspect_ai, or one of them")
    return found
