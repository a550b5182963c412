"""The names of lighteval, and of packages that its files import, which are available while a task file is loaded."""

from collections.abc import Mapping

_PACKAGE = "eval_dagster.peers.lighteval"


def _at(module: str, *names: str) -> dict[str, str]:
    return {name: f"{_PACKAGE}.{module}:{name}" for name in names}


_CLASSES = (
    "CorpusLevelMetric",
    "CorpusLevelMetricGrouping",
    "Metric",
    "MetricGrouping",
    "SampleLevelMetric",
    "SampleLevelMetricGrouping",
)
_DOCS = {**_at("doc", "Doc"), "SamplingMethod": "eval_dagster.tasks.doc:SamplingMethod"}
_RESPONSE = {"ModelResponse": "eval_dagster.records:ModelResponse"}
_TARGETS = _at("texts", "ExprExtractionConfig", "IndicesExtractionConfig", "LatexExtractionConfig")
_EXTRACTION = {
    **_TARGETS,
    **_at("ignored", "extract_target_from_pred", "get_extraction_regexes"),
    # Scorers of the other engine call it while a file is loaded.
    "get_extraction_regexes_inspect": f"{_PACKAGE}.ignored:ignored",
}
_FORMULATIONS = _at("templates", "CFFormulation", "HybridFormulation", "MCFFormulation")
_SAMPLE_FUNCTIONS = {
    **_at("computations", "AccGoldLikelihood", "ExactMatches", "F1_score", "LoglikelihoodAcc", "MRR", "NormalizedMultiChoiceProbability"),
    **_at("computations", "Recall", "SampleLevelComputation"),
    **_at("sampling", "AvgAtN", "GPassAtK", "MajAtN", "PassAtK", "SamplingMetric"),
    **_at("texts", "JudgeLLM", "ROUGE"),
    **dict.fromkeys(("JudgeLLMMTBench", "JudgeLLMMixEval", "JudgeLLMSimpleQA"), f"{_PACKAGE}.texts:JudgeLLM"),
}
_PREPARATORS = _at("corpus", "GenerativePreparator", "LoglikelihoodPreparator", "PerplexityPreparator", "TargetPerplexityPreparator")
_NORMALIZERS = (
    "LogProbCharNorm",
    "LogProbPMINorm",
    "LogProbTokenNorm",
    "bigbench_normalizer",
    "gsm8k_normalizer",
    "harness_triviaqa_normalizer",
    "helm_normalizer",
    "math_normalizer",
    "remove_braces",
    "remove_braces_and_strip",
)


def _ignored(*names: str, kind: str = "ignored") -> dict[str, str]:
    return dict.fromkeys(names, f"{_PACKAGE}.ignored:{kind}")


LIGHTEVAL: Mapping[str, Mapping[str, str]] = {
    "lighteval.metrics.dynamic_metrics": {**_EXTRACTION, **_at("texts", "MultilingualExtractiveMatchMetric")},
    "lighteval.metrics.metrics": {
        **_at("members", "Metrics"),
        **_at("metric", *_CLASSES),
        **_SAMPLE_FUNCTIONS,
        **_ignored("math_scorer", "multichoice_scorer"),
    },
    "lighteval.metrics.metrics_corpus": _at(
        "corpus",
        "CorpusLevelComputation",
        "CorpusLevelF1Score",
        "CorpusLevelPerplexityMetric",
        "CorpusLevelTranslationMetric",
        "MatthewsCorrCoef",
    ),
    "lighteval.metrics.metrics_sample": _SAMPLE_FUNCTIONS,
    "lighteval.metrics.normalizations": _at("normalizations", *_NORMALIZERS),
    "lighteval.metrics.sample_preparator": _PREPARATORS,
    "lighteval.metrics.utils.extractive_match_utils": _EXTRACTION,
    "lighteval.metrics.utils.metric_utils": {
        **_at("metric", *_CLASSES),
        **_at("computations", "SampleLevelComputation"),
        **_at("corpus", "CorpusLevelComputation"),
        "SamplingMethod": _DOCS["SamplingMethod"],
    },
    "lighteval.models.model_output": _RESPONSE,
    "lighteval.tasks.lighteval_task": {
        **_at("config", "LightevalTaskConfig"),
        **_at("values", "TextGenerationInputGrammarType"),
        "Doc": _DOCS["Doc"],
    },
    "lighteval.tasks.requests": _DOCS,
    "lighteval.tasks.templates.multichoice": _at("templates", "get_mcq_prompt_function"),
    "lighteval.tasks.templates.qa": _at("templates", "get_qa_prompt_function"),
    "lighteval.tasks.templates.utils.formulation": _FORMULATIONS,
    "lighteval.utils.imports": _at("values", "Extra", "is_package_available", "requires"),
    "lighteval.utils.language": _at("values", "Language"),
    "lighteval.utils.utils": _at("values", "as_list"),
    # Its files describe each benchmark for the engine inspect_ai, too.
    "inspect_ai.dataset": _ignored("FieldSpec", "MemoryDataset", "Sample", "hf_dataset", kind="Ignored"),
    "inspect_ai.model": _ignored("ChatMessageAssistant", "ChatMessageSystem", "ChatMessageUser", "GenerateConfig", "get_model"),
    "inspect_ai.scorer": {
        **_ignored("Metric", "SampleScore", "Score", "Target", kind="Ignored"),
        **_ignored("metric", "scorer", kind="decorator"),
        **_ignored("accuracy", "answer", "choice", "exact", "f1", "includes", "match", "mean", "model_graded_fact", "model_graded_qa"),
        **_ignored("pattern", "std", "stderr"),
    },
    "inspect_ai.solver": {
        **_ignored("Generate", "TaskState", kind="Ignored"),
        **_ignored("solver", kind="decorator"),
        **_ignored("chain_of_thought", "generate", "multiple_choice", "prompt_template", "system_message", "user_message"),
    },
    "aenum": _at("values", "extend_enum"),
}
"""Module -> its names -> their places in this project."""
OWN_TASKS = "lighteval.tasks.tasks"
"""The package of lighteval's own task files. A file imports the files beside it by its name."""
