"""Versions of what is installed beside a package. It needs the standard library alone."""

import platform
from importlib import metadata


def versions_around(package: str, *others: str) -> dict[str, str | None]:
    """The versions of Python, of a distribution, of those that it requires and of others; None for one that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    required = [text for text in metadata.requires(package) or () if "extra ==" not in text]
    for text in [package, *others, *required]:
        name = "".join(letter if letter.isalnum() or letter in "-_." else " " for letter in text).split()[0]
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found
