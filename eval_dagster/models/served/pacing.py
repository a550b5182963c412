"""Placeholder."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, kw_only=True)
class PaceSettings:
    """X."""

    fixed: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


class Pace:
    """X."""

    def __init__(self, settings: PaceSettings, folder: Path) -> None:
        self._places = asyncio.Semaphore(settings.fixed or 16)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *args: object) -> None:
        pass

    async def wait(self, tokens: int) -> None:
        await self._places.acquire()

    def answered(self, tokens: int) -> None:
        self._places.release()

    def failed(self) -> None:
        self._places.release()

    def pushed_back(self, retry_after_s: float | None) -> None:
        self._places.release()
