"""The parameters of an address, checked."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from eval_dagster.errors import UsageError

_MOST_DIGITS = 7


class NotFoundError(UsageError):
    """An address names something that the lake does not hold."""


class Parameters:
    """The parameters after the `?` of an address. Each method raises `UsageError` if a value is not as expected."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, name: str) -> str | None:
        """A text; null if it is missing or empty."""
        return self._values.get(name) or None

    def required(self, name: str) -> str:
        """A text that must be there."""
        found = self.text(name)
        if found is None:
            raise UsageError(f"the address has no {name!r}; expected ?{name}=... in it: open the page by a link")
        return found

    def number(self, name: str) -> float | None:
        """A number; null if it is missing or empty."""
        found = self.text(name)
        if found is None:
            return None
        try:
            number = float(found)
        except ValueError as error:
            raise UsageError(f"found {name}={found!r} in the address; expected a number") from error
        if number != number:
            raise UsageError(f"found {name}={found!r} in the address; expected a number")
        return number

    def page(self) -> int:
        """The number of a part of a long list, from 1."""
        found = self.text("page") or "1"
        if not (found.isascii() and found.isdigit() and len(found) <= _MOST_DIGITS and int(found) >= 1):
            raise UsageError(f"found page={found!r} in the address; expected a whole number from 1 to 9999999")
        return int(found)

    def switch(self, name: str) -> bool:
        """Whether a box is ticked."""
        return self.text(name) is not None

    def choice(self, name: str, choices: Sequence[str]) -> str | None:
        """One of some words; null if it is missing or empty."""
        found = self.text(name)
        if found is not None and found not in choices:
            raise UsageError(f"found {name}={found!r} in the address; expected one of {', '.join(choices)}")
        return found

    def time(self, name: str) -> datetime | None:
        """A time with its zone, UTC if it has none; null if it is missing or empty."""
        found = self.text(name)
        if found is None:
            return None
        return time_of_address(found, f"{name}={found!r}")


def time_of_address(text: str, shown: str) -> datetime:
    """A time of an address in UTC; one without a zone is in UTC. Raises `UsageError`, with `shown` as what was found, if it is none."""
    try:
        time = datetime.fromisoformat(text)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"found {shown} in the address; expected a time such as 2026-01-31T02:00:00Z") from error
