"""Translation of news, as at the workshops on machine translation."""

from typing import ClassVar

from eval_dagster.metrics.translation import BLEU, TER, ChrF
from eval_dagster.records import ResponseType, Row
from eval_dagster.tasks.base import BaseTask

_NAMES = {"de": "German", "en": "English", "fr": "French", "ro": "Romanian"}


class _WMT(BaseTask[str]):
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "validation"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = (BLEU, ChrF, TER)
    STOP_SEQUENCES = ("\n",)
    MAX_TOKENS = 256  # as in lm-eval
    DIRECTION: ClassVar[tuple[str, str]]
    """The codes of the source and the target language."""

    def _get_instruction_text(self, item: Row) -> str:
        source, target = self.DIRECTION
        return f"{_NAMES[source]} phrase: {item['translation'][source]}\n{_NAMES[target]} phrase:"

    def _get_ground_truth(self, item: Row) -> str:
        return str(item["translation"][self.DIRECTION[1]])

    def _get_fewshot_target_text(self, item: Row) -> str:
        return f" {self._get_ground_truth(item)}"


class WMT14FrEn(_WMT):
    """French news in English (Bojar et al. 2014, W14-3302)."""

    NAME = "WMT14 (French to English)"
    DATASET_PATH = "wmt/wmt14"
    DATASET_REVISION = "b199e406369ec1b7634206d3ded5ba45de2fe696"
    SUBJECTS = ("fr-en",)
    SOURCE = "https://huggingface.co/datasets/wmt/wmt14 (licence unknown)"
    DIRECTION = ("fr", "en")


class WMT14EnFr(WMT14FrEn):
    """English news in French."""

    NAME = "WMT14 (English to French)"
    DIRECTION = ("en", "fr")


class WMT16DeEn(_WMT):
    """German news in English (Bojar et al. 2016, W16-2301)."""

    NAME = "WMT16 (German to English)"
    DATASET_PATH = "wmt/wmt16"
    DATASET_REVISION = "41d8a4013aa1489f28fea60ec0932af246086482"
    SUBJECTS: ClassVar[tuple[str]] = ("de-en",)
    SOURCE = "https://huggingface.co/datasets/wmt/wmt16 (licence unknown)"
    DIRECTION = ("de", "en")


class WMT16EnDe(WMT16DeEn):
    """English news in German."""

    NAME = "WMT16 (English to German)"
    DIRECTION = ("en", "de")


class WMT16RoEn(WMT16DeEn):
    """Romanian news in English."""

    NAME = "WMT16 (Romanian to English)"
    SUBJECTS = ("ro-en",)
    DIRECTION = ("ro", "en")


class WMT16EnRo(WMT16RoEn):
    """English news in Romanian."""

    NAME = "WMT16 (English to Romanian)"
    DIRECTION = ("en", "ro")
