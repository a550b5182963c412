"""The number of examples with which each benchmark is reported, unless an eval says otherwise."""

from eval_dagster.task_defs import TASKS

# Of all others none. Sources stand beside NUM_FEWSHOT in the benchmark's file.
CUSTOMARY = {
    1: ["squad", "squad_bpb", "squad_v2"],
    3: ["bbh", "drop", "mbpp", "mbpp_bpb", "mbpp_instruct"],
    4: ["minerva_math500"],
    5: [
        *("gsm8k", "mmlu", "mmlu_bpb", "mmlu_cloze", "mmlu_idk", "mmlu_pro", "mmlu_pro_idk", "mmlu_pro_mc", "triviaqa"),
        *("arc_challenge_bpb", "arc_challenge_idk", "arc_challenge_mc", "arc_easy_bpb", "arc_easy_idk", "arc_easy_mc"),
        *("boolq_idk", "boolq_mc", "commonsense_qa_bpb", "commonsense_qa_cloze", "drop_bpb", "drop_cloze", "drop_mc"),
        *("hellaswag_bpb", "hellaswag_idk", "hellaswag_mc", "nq_open", "nq_open_bpb", "nq_open_cloze", "nq_open_mc"),
        *("openbookqa_bpb", "openbookqa_idk", "openbookqa_mc", "piqa_bpb", "piqa_idk", "piqa_mc"),
        *("social_iqa_bpb", "social_iqa_idk", "social_iqa_mc", "winogrande", "winogrande_bpb", "winogrande_idk", "winogrande_mc"),
    ],
    7: ["commonsense_qa", "commonsense_qa_idk"],
    8: ["gsm8k_bpb", "gsm8k_cot", "gsm8k_maj_at_8"],
    25: ["arc_challenge"],
}


def test_each_benchmark_has_its_customary_shots() -> None:
    expected = {name: shots for shots, names in CUSTOMARY.items() for name in names}
    assert {name: task.customary().num_fewshot for name, task in TASKS.items()} == dict.fromkeys(TASKS, 0) | expected
