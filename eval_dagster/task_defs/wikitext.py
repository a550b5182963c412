"""WikiText-2."""

import re
from collections.abc import Mapping
from typing import Any

from eval_dagster.metrics.perplexity import BitsPerByte, BytePerplexity, WordPerplexity
from eval_dagster.records import ResponseType, Row
from eval_dagster.tasks.base import BaseTask

_READABLE = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"s '", "s'"),
        (r"/' [0-9]/", "/'[0-9]/"),  # A slip that everybody repeats: it means a year without its century.
        *((rf" @{re.escape(sign)}@ ", sign) for sign in "-,."),
        *((rf" {re.escape(sign)} ", f"{sign} ") for sign in ":;.!?,"),
        (r"\(\s*([^\)]*?)\s*\)", r"(\1)"),
        (r"\[\s*([^\]]*?)\s*\]", r"[\1]"),
        (r"{\s*([^}]*?)\s*}", r"{\1}"),
        (r'"\s*([^"]*?)\s*"', r'"\1"'),
        (r"'\s*([^']*?)\s*'", r"'\1'"),
        *((" ".join("=" * count), "=" * count) for count in (4, 3, 2)),
        (" ° ", "°"),
        (" \n", "\n"),
        ("\n ", "\n"),
        (" N ", " 1 "),
        (" 's", "'s"),
    )
)
"""Patterns that undo the dataset's tokenization, one after the other."""


class WikiText(BaseTask[str]):
    """How well a model predicts whole articles of Wikipedia (Merity et al. 2016, arXiv:1609.07843).

    As in lm-evaluation-harness, the text is made readable before it is scored. Its words and bytes are counted before that.
    """

    NAME = "WikiText-2"
    DATASET_PATH = "EleutherAI/wikitext_document_level"
    DATASET_REVISION = "647234772b9554e208af6c826f23b99e3cac88c8"
    SAMPLE_SPLIT = "test"
    RESPONSE_TYPE = ResponseType.PERPLEXITY
    METRICS = (WordPerplexity, BytePerplexity, BitsPerByte)
    SUBJECTS = ("wikitext-2-raw-v1",)
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/EleutherAI/wikitext_document_level (CC BY-SA 3.0)"

    def _get_instruction_text(self, item: Row) -> str:
        text: str = item["page"]
        for pattern, replacement in _READABLE:
            text = pattern.sub(replacement, text)
        return text

    def _get_context(self, item: Row) -> Mapping[str, Any]:
        return {"original_text": item["page"]}
