"""WMT24++."""

from eval_dagster.metrics.translation import ChrF
from eval_dagster.records import ResponseType, Row, TaskSample
from eval_dagster.tasks.base import BaseTask

_NAMES = """
    ar Arabic | bg Bulgarian | bn Bengali | ca Catalan | cs Czech | da Danish | de German | el Greek | es Spanish | et Estonian | fa Farsi
    fi Finnish | fil Filipino | fr French | gu Gujarati | he Hebrew | hi Hindi | hr Croatian | hu Hungarian | id Indonesian | is Icelandic
    it Italian | ja Japanese | kn Kannada | ko Korean | lt Lithuanian | lv Latvian | ml Malayalam | mr Marathi | nl Dutch | no Norwegian
    pa Punjabi | pl Polish | pt Portuguese | ro Romanian | ru Russian | sk Slovak | sl Slovenian | sr Serbian | sv Swedish | sw Swahili
    ta Tamil | te Telugu | th Thai | tr Turkish | uk Ukrainian | ur Urdu | vi Vietnamese | zh Chinese | zu Zulu
"""
_LANGUAGES = dict(entry.split() for line in _NAMES.strip().split("\n") for entry in line.split("|"))
_REGIONS = """
    ar_EG ar_SA bg_BG bn_IN ca_ES cs_CZ da_DK de_DE el_GR es_MX et_EE fa_IR fi_FI fil_PH fr_CA fr_FR gu_IN he_IL hi_IN hr_HR hu_HU id_ID
    is_IS it_IT ja_JP kn_IN ko_KR lt_LT lv_LV ml_IN mr_IN nl_NL no_NO pa_IN pl_PL pt_BR pt_PT ro_RO ru_RU sk_SK sl_SI sr_RS sv_SE sw_KE
    sw_TZ ta_IN te_IN th_TH tr_TR uk_UA ur_PK vi_VN zh_CN zh_TW zu_ZA
"""


class WMT24pp(BaseTask[str]):
    """English news, speech, posts and stories in 55 languages and dialects (Deutsch et al. 2025, arXiv:2502.12404), with its prompt.

    Sources that its authors marked as bad are left out. BLEU is not among the metrics, since it needs words that are separated by spaces.
    """

    NAME = "WMT24++"
    DATASET_PATH = "google/wmt24pp"
    DATASET_REVISION = "fd7405c06494bc66a57b25f55d217a72f96e60dc"
    SAMPLE_SPLIT = "train"
    FEWSHOT_SPLIT = "train"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = (ChrF,)
    HEADLINE_AGGREGATION = "macro"
    SUBJECTS = tuple(f"en-{region}" for region in _REGIONS.split())
    MAX_TOKENS = 2048
    CLUSTER_FIELD = "document_id"
    SOURCE = "https://huggingface.co/datasets/google/wmt24pp (Apache-2.0)"

    def is_example(self, item: Row) -> bool:
        """Whether its source is good."""
        return not item["is_bad_source"]

    def _get_instruction_text(self, item: Row) -> str:
        code = item["lp"].partition("-")[2]
        language = _LANGUAGES[code.partition("_")[0]]
        return (
            f"You are a professional English to {language} translator, tasked with providing translations suitable for use in {language} "
            f"({code}). Your goal is to accurately convey the meaning and nuances of the original English text while adhering to "
            f"{language} grammar, vocabulary, and cultural sensitivities.\nProduce only the {language} translation, without any additional "
            f"explanations or commentary.\nPlease translate the following English text into {language} ({code}):\n\n{item['source']}"
        )

    def _get_ground_truth(self, item: Row) -> str:
        return str(item["target"])

    def _get_fewshot_target_text(self, item: Row) -> str:
        return f"\n\n{item['target']}"

    def _create_samples(self, item: Row, index: int, subject: str) -> list[TaskSample]:
        return [] if item["is_bad_source"] else super()._create_samples(item, index, subject)
