"""The rows of an eval whose prompts are checked: all of them, or an even sample of many."""

from hashlib import blake2b

from eval_dagster.prompts.parts import Asked
from eval_dagster.records.rendered_prompt import RenderedPrompt

_MOST_ROWS = 20_000
"""Rows that are looked at. The error of a share is then at most 0.7 points, at 95 %."""


class RowSample:
    """The prompts of an eval for one model, which come one after the other. Of many rows, some are kept.

    A hash of the question decides which. So of rows that ask the same, all are kept or none, and about the same share of both is repeated.
    """

    def __init__(self, *, num_fewshot: int, most: int = _MOST_ROWS) -> None:
        """Begin without a prompt.

        Args:
            num_fewshot: Examples before each question.
            most: Rows of the dataset that are kept.
        """
        self.num_fewshot = num_fewshot
        self.n_rows = 0
        """Rows so far."""
        self._most = most
        self._kept: dict[str, list[RenderedPrompt]] = {}
        """The prompts of rows by their source ids."""
        self._keys: dict[str, int] = {}
        """The keys of rows that have been compared."""
        self._last = ""
        """The source id of the last prompt. A row's prompts come together."""
        self._largest: int | None = None
        """The largest key of rows that are kept; null as long as all are."""
        self._full_at = 2 * most
        """Rows that are kept at most before some are chosen again."""

    @property
    def n_kept(self) -> int:
        """Rows that are kept."""
        return len(self._kept)

    @property
    def is_whole(self) -> bool:
        """Whether all rows are kept."""
        return self.n_kept == self.n_rows

    def add(self, prompt: RenderedPrompt) -> None:
        """Add the next prompt."""
        source = prompt.source_id
        if source != self._last and source not in self._kept:
            self.n_rows += 1
            if self._largest is None or self._key(prompt) <= self._largest:
                if len(self._kept) >= self._full_at:
                    self._choose()
                self._kept[source] = []
        self._last = source
        if source in self._kept:
            self._kept[source].append(prompt)

    def prompts(self) -> list[RenderedPrompt]:
        """The prompts of the rows that are kept, in their order."""
        if len(self._kept) > self._most:
            self._choose()
        return [prompt for of_row in self._kept.values() for prompt in of_row]

    def _choose(self) -> None:
        """Keep the rows with the smallest keys."""
        self._keys = {source: self._keys.get(source) or self._key(of_row[0]) for source, of_row in self._kept.items()}
        self._largest = sorted(self._keys.values())[self._most - 1]
        self._kept = {source: of_row for source, of_row in self._kept.items() if self._keys[source] <= self._largest}
        self._full_at = 2 * max(self._most, len(self._kept))  # of rows that ask the same, more may stay

    def _key(self, prompt: RenderedPrompt) -> int:
        """A number by which rows are chosen, equal for rows that ask the same."""
        question = Asked(prompt=prompt, shots=self.num_fewshot).question if prompt.error is None else None
        text = prompt.source_id if question is None else question
        of_text = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8)
        for image in prompt.request.images:
            of_text.update(image)
        return int.from_bytes(of_text.digest(), "big")
