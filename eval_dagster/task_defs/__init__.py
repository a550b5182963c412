"""The benchmarks, by the names under which evals.yaml finds them."""

from typing import Any

from eval_dagster.task_defs.aime import AIME24, AIME25, AIME26, AIME24AvgAt16, AIME25AvgAt16, AIME26AvgAt16
from eval_dagster.task_defs.arc import (
    ARCChallenge,
    ARCChallengeBPB,
    ARCChallengeIDK,
    ARCChallengeMC,
    ARCEasy,
    ARCEasyBPB,
    ARCEasyIDK,
    ARCEasyMC,
)
from eval_dagster.task_defs.arithmetic import Arithmetic
from eval_dagster.task_defs.bbh import BBH, BBHCoT
from eval_dagster.task_defs.boolq import BoolQ, BoolQIDK, BoolQMC
from eval_dagster.task_defs.capitals import CapitalsChoice, CapitalsCompletion
from eval_dagster.task_defs.commonsense_qa import CommonsenseQA, CommonsenseQABPB, CommonsenseQACloze, CommonsenseQAIDK
from eval_dagster.task_defs.copa import COPA, COPABPB, COPAIDK, COPAMC
from eval_dagster.task_defs.drop import DROP, DROPBPB, DROPChoice, DROPCloze
from eval_dagster.task_defs.gpqa import GPQA, GPQAIDK, GPQACoT, GPQAExtended, GPQAMain
from eval_dagster.task_defs.gsm8k import GSM8K, GSM8KBPB, GSM8KCoT, GSM8KMajAt8
from eval_dagster.task_defs.hellaswag import HellaSwag, HellaSwagBPB, HellaSwagIDK, HellaSwagMC
from eval_dagster.task_defs.humaneval import HumanEval, HumanEvalBPB, HumanEvalInstruct, HumanEvalPassAt10
from eval_dagster.task_defs.ifeval import IFEval
from eval_dagster.task_defs.lambada import LAMBADA
from eval_dagster.task_defs.math_500 import Math500, MinervaMath500
from eval_dagster.task_defs.mbpp import MBPP, MBPPBPB, MBPPInstruct
from eval_dagster.task_defs.mmlu import MMLU, MMLUBPB, MMLUIDK, MMLUCloze, MMLUCoT
from eval_dagster.task_defs.mmlu_pro import MMLUPro, MMLUProIDK, MMLUProMC
from eval_dagster.task_defs.nq_open import NQOpen, NQOpenBPB, NQOpenChoice, NQOpenCloze
from eval_dagster.task_defs.openbookqa import OpenBookQA, OpenBookQABPB, OpenBookQAIDK, OpenBookQAMC
from eval_dagster.task_defs.piqa import PIQA, PIQABPB, PIQAIDK, PIQAMC
from eval_dagster.task_defs.sciq import SciQ, SciQBPB, SciQIDK, SciQMC
from eval_dagster.task_defs.social_iqa import SocialIQa, SocialIQaBPB, SocialIQaIDK, SocialIQaMC
from eval_dagster.task_defs.squad import SQuAD, SQuADBPB, SQuADv2
from eval_dagster.task_defs.triviaqa import TriviaQA
from eval_dagster.task_defs.truthfulqa import TruthfulQAGeneration, TruthfulQAIDK, TruthfulQAMC1, TruthfulQAMC2
from eval_dagster.task_defs.wikitext import WikiText
from eval_dagster.task_defs.winogrande import WinoGrande, WinoGrandeBPB, WinoGrandeIDK, WinoGrandeMC
from eval_dagster.task_defs.wmt import WMT14EnFr, WMT14FrEn, WMT16DeEn, WMT16EnDe, WMT16EnRo, WMT16RoEn
from eval_dagster.task_defs.wmt24pp import WMT24pp
from eval_dagster.tasks.base import BaseTask

TASKS: dict[str, type[BaseTask[Any]]] = {
    "aime24": AIME24,
    "aime24_avg_at_16": AIME24AvgAt16,
    "aime25": AIME25,
    "aime25_avg_at_16": AIME25AvgAt16,
    "aime26": AIME26,
    "aime26_avg_at_16": AIME26AvgAt16,
    "arc_challenge": ARCChallenge,
    "arc_challenge_bpb": ARCChallengeBPB,
    "arc_challenge_idk": ARCChallengeIDK,
    "arc_challenge_mc": ARCChallengeMC,
    "arc_easy": ARCEasy,
    "arc_easy_bpb": ARCEasyBPB,
    "arc_easy_idk": ARCEasyIDK,
    "arc_easy_mc": ARCEasyMC,
    "arithmetic": Arithmetic,
    "bbh": BBH,
    "bbh_cot": BBHCoT,
    "boolq": BoolQ,
    "boolq_idk": BoolQIDK,
    "boolq_mc": BoolQMC,
    "capitals": CapitalsChoice,
    "capitals_completion": CapitalsCompletion,
    "commonsense_qa": CommonsenseQA,
    "commonsense_qa_bpb": CommonsenseQABPB,
    "commonsense_qa_cloze": CommonsenseQACloze,
    "commonsense_qa_idk": CommonsenseQAIDK,
    "copa": COPA,
    "copa_bpb": COPABPB,
    "copa_idk": COPAIDK,
    "copa_mc": COPAMC,
    "drop": DROP,
    "drop_bpb": DROPBPB,
    "drop_cloze": DROPCloze,
    "drop_mc": DROPChoice,
    "gpqa": GPQA,
    "gpqa_cot": GPQACoT,
    "gpqa_extended": GPQAExtended,
    "gpqa_idk": GPQAIDK,
    "gpqa_main": GPQAMain,
    "gsm8k": GSM8K,
    "gsm8k_bpb": GSM8KBPB,
    "gsm8k_cot": GSM8KCoT,
    "gsm8k_maj_at_8": GSM8KMajAt8,
    "hellaswag": HellaSwag,
    "hellaswag_bpb": HellaSwagBPB,
    "hellaswag_idk": HellaSwagIDK,
    "hellaswag_mc": HellaSwagMC,
    "humaneval": HumanEval,
    "humaneval_bpb": HumanEvalBPB,
    "humaneval_instruct": HumanEvalInstruct,
    "humaneval_pass_at_10": HumanEvalPassAt10,
    "ifeval": IFEval,
    "lambada_openai": LAMBADA,
    "math_500": Math500,
    "mbpp": MBPP,
    "mbpp_bpb": MBPPBPB,
    "mbpp_instruct": MBPPInstruct,
    "minerva_math500": MinervaMath500,
    "mmlu": MMLU,
    "mmlu_bpb": MMLUBPB,
    "mmlu_cloze": MMLUCloze,
    "mmlu_cot": MMLUCoT,
    "mmlu_idk": MMLUIDK,
    "mmlu_pro": MMLUPro,
    "mmlu_pro_idk": MMLUProIDK,
    "mmlu_pro_mc": MMLUProMC,
    "nq_open": NQOpen,
    "nq_open_bpb": NQOpenBPB,
    "nq_open_cloze": NQOpenCloze,
    "nq_open_mc": NQOpenChoice,
    "openbookqa": OpenBookQA,
    "openbookqa_bpb": OpenBookQABPB,
    "openbookqa_idk": OpenBookQAIDK,
    "openbookqa_mc": OpenBookQAMC,
    "piqa": PIQA,
    "piqa_bpb": PIQABPB,
    "piqa_idk": PIQAIDK,
    "piqa_mc": PIQAMC,
    "sciq": SciQ,
    "sciq_bpb": SciQBPB,
    "sciq_idk": SciQIDK,
    "sciq_mc": SciQMC,
    "social_iqa": SocialIQa,
    "social_iqa_bpb": SocialIQaBPB,
    "social_iqa_idk": SocialIQaIDK,
    "social_iqa_mc": SocialIQaMC,
    "squad": SQuAD,
    "squad_bpb": SQuADBPB,
    "squad_v2": SQuADv2,
    "triviaqa": TriviaQA,
    "truthfulqa_gen": TruthfulQAGeneration,
    "truthfulqa_idk": TruthfulQAIDK,
    "truthfulqa_mc1": TruthfulQAMC1,
    "truthfulqa_mc2": TruthfulQAMC2,
    "wikitext": WikiText,
    "winogrande": WinoGrande,
    "winogrande_bpb": WinoGrandeBPB,
    "winogrande_idk": WinoGrandeIDK,
    "winogrande_mc": WinoGrandeMC,
    "wmt14_en_fr": WMT14EnFr,
    "wmt14_fr_en": WMT14FrEn,
    "wmt16_de_en": WMT16DeEn,
    "wmt16_en_de": WMT16EnDe,
    "wmt16_en_ro": WMT16EnRo,
    "wmt16_ro_en": WMT16RoEn,
    "wmt24pp": WMT24pp,
}
