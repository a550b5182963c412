"""The names by which files for eval-framework and lighteval import classes of this project, and the packages that these files import.

They are available while a task file is loaded.
"""

from collections.abc import Mapping

_HERE = "eval_dagster.peers.eval_framework"
_RECORDS = "eval_dagster.records"
_METRICS = "eval_framework.metrics"


def _names(module: str, names: str) -> dict[str, str]:
    """Names from a module of this project. `theirs=ours` marks a name that differs there."""
    pairs = [name.partition("=") for name in names.split()]
    return {theirs: f"{module}:{ours or theirs}" for theirs, _, ours in pairs}


_ACCURACY = "AccuracyLoglikelihood AccuracyNormLoglikelihood PartialEvalAccuracy"
_RESPONSES = "Completion ConcatCompression Loglikelihood"
_CONTEXTS = "BaseMetricContext LanguageMetricContext UntemplatedPrompt extract_context_metric"
_STYLES = "BPBStyle ClozeStyle MCCompletionStyle MCStyle TaskStyler answer_key_to_index format_mc_prompt shuffle_correct_with_distractors"
_ABOUT_TASKS = {
    "BaseTask": f"{_HERE}.task:EvalFrameworkTask",
    "Language": "eval_dagster.tasks.language:Language",
    "NO_SUBJECT": "eval_dagster.tasks.base:NO_SUBJECT",
    "RANDOM_SEED": f"{_HERE}.task:RANDOM_SEED",
    "ResponseType": f"{_RECORDS}:ResponseType",
    "Sample": f"{_RECORDS}:TaskSample",
    "SubjectType": "eval_dagster.tasks.base:SubjectType",
    "Task": f"{_HERE}.task:EvalFrameworkTask",
    "TaskStyle": "eval_dagster.tasks.style:TaskStyle",
}

GRADERS = {
    "chatbot_style_grader": "ChatbotStyleGrader ChatbotStyleGradingOutput",
    "coherence_grader": "CoherenceGrader CoherenceGradingOutput",
    "comparison_grader": "ComparisonGrader ComparisonGradingOutput MatchOutcome",
    "conciseness_grader": "ConcisenessGrader ConcisenessGradingOutput",
    "contains_names_grader": "ContainsNamesGrader ContainsNamesGradingOutput",
    "format_correctness_grader": "FormatCorrectnessGrader FormatCorrectnessOutput",
    "instruction_grader": "InstructionGrader InstructionGradingOutput",
    "long_context_grader": "LongContextGrader LongContextGradingOutput",
    "refusal_grader": "RefusalGrader RefusalGradingOutput",
    "sql_quality_grader": "SqlQualityGrader SqlQualityGradingOutput",
    "summary_world_knowledge_grader": "SummarizationWorldKnowledgeGrader SummarizationWorldKnowledgeGradingOutput",
}
"""Modules of eval-framework's graders and their names."""
EVAL_FRAMEWORK: Mapping[str, Mapping[str, str]] = {
    "eval_framework.exceptions": _names(f"{_HERE}.errors", "LogicError"),
    "eval_framework.llm.base": _names(f"{_HERE}.judges", "BaseLLM"),
    "eval_framework.logger": _names(f"{_HERE}.errors", "logger"),
    "eval_framework.models.sample": {"ResponseType": f"{_RECORDS}:ResponseType", "Sample": f"{_RECORDS}:TaskSample"},
    "eval_framework.shared.types": {
        **_names(f"{_HERE}.contexts", f"{_CONTEXTS} MetricContext=ContextT"),
        **_names(f"{_HERE}.responses", f"{_RESPONSES} BaseCompletion=Completion BaseLoglikelihood=Loglikelihood"),
        **_names(f"{_HERE}.errors", "PromptTooLongException"),
        "Error": "eval_dagster.metrics.base:Error",
        **_names("eval_dagster.peers.raw_answers", "RawCompletion RawLoglikelihood"),
    },
    "eval_framework.tasks.base": _ABOUT_TASKS,
    "eval_framework.tasks.dataset_revisions": _names(f"{_HERE}.revisions", "FROZEN_HF_REVISIONS_LOCKFILE HF_REVISIONS_LOCKFILE"),
    "eval_framework.tasks.task_style": {
        **_names(f"{_HERE}.styles", _STYLES),
        **{name: _ABOUT_TASKS[name] for name in ("Language", "ResponseType", "TaskStyle")},
    },
    "eval_framework.tasks.utils": {
        **_names(f"{_HERE}.styles", "get_n_letters"),
        **_names(f"{_HERE}.metrics.base", "classproperty raise_errors"),
        **_names(
            f"{_HERE}.code",
            "BIG_CODE_BENCH_PACKAGE_MAPPING CallableSerializer DecodingError EncodingError ExecutionResult SerializationError "
            "_parse_unittest_output execute_python_code_with_tests extract_imports get_external_dependencies run_python_code "
            "unittest_merge_snippets",
        ),
        **_names(f"{_HERE}.sandbox_sessions", "get_docker_address get_or_create_pool"),
        "RANDOM_SEED": f"{_HERE}.task:RANDOM_SEED",
    },
    "eval_framework.utils.helpers": _names(f"{_HERE}.numbers", "cosine_similarity count_bytes pairwise_cosine_similarity"),
    f"{_METRICS}.aggregators.aggregators": _names(f"{_HERE}.aggregators", "Aggregator IdentifierMean Identity PassAtK closed_form_passatk"),
    f"{_METRICS}.base": _names(f"{_HERE}.metrics.base", "BaseMetric MetricResult classproperty"),
    f"{_METRICS}.llm.base": _names(f"{_HERE}.metrics.base", "BaseLLMJudgeMetric"),
    f"{_METRICS}.llm.graders.language": _names(
        f"{_HERE}.languages", "AVAILABLE_LANGUAGES Config Language LanguageNotSupportedError detect_language_of"
    ),
    f"{_METRICS}.loglikelihood.accuracy_loglikelihood": _names(f"{_HERE}.metrics.loglikelihood", _ACCURACY),
    f"{_METRICS}.loglikelihood.accuracy_norm_loglikelihood": _names(f"{_HERE}.metrics.loglikelihood", "AccuracyNormLoglikelihood"),
    f"{_METRICS}.loglikelihood.base": _names(f"{_HERE}.metrics.loglikelihood", "BaseLoglikelihoodMetric"),
    f"{_METRICS}.loglikelihood.bits_per_byte": _names(f"{_HERE}.metrics.loglikelihood", "BitsPerByteLoglikelihood"),
    f"{_METRICS}.loglikelihood.confidence_weighted_accuracy": _names(f"{_HERE}.metrics.loglikelihood", "ConfidenceWeightedAccuracy"),
    f"{_METRICS}.loglikelihood.dcs": _names(f"{_HERE}.metrics.loglikelihood", "DistributionalCorrectnessScore"),
    f"{_METRICS}.loglikelihood.probability_mass": _names(f"{_HERE}.metrics.loglikelihood", "ProbabilityMass ProbabilityMassNorm"),
    f"{_METRICS}.loglikelihood.probability_mass_norm": _names(f"{_HERE}.metrics.loglikelihood", "ProbabilityMassNorm"),
    f"{_METRICS}.loglikelihood.ternary": _names(f"{_HERE}.metrics.loglikelihood", "TernaryScore"),
    f"{_METRICS}.completion.accuracy_completion": _names(
        f"{_HERE}.metrics.text", "AccuracyCompletion AccuracyCompletionOLMES AccuracyCompletionWithEvaluate exact_match_hf_evaluate"
    ),
    f"{_METRICS}.completion.f1": _names(f"{_HERE}.metrics.text", "F1 F1SquadNormalized calculate_f1"),
    f"{_METRICS}.completion.rouge_1": _names(f"{_HERE}.metrics.text", "ROUGE_1"),
    f"{_METRICS}.completion.rouge_2": _names(f"{_HERE}.metrics.text", "ROUGE_2"),
    f"{_METRICS}.completion.rouge_geometric_mean": _names(f"{_HERE}.metrics.text", "ROUGE_GEOMETRIC_MEAN"),
    f"{_METRICS}.completion.rouge_l": _names(f"{_HERE}.metrics.text", "ROUGE_L"),
    f"{_METRICS}.completion.code_assertion": _names(f"{_HERE}.metrics.code", "CodeCompletionAssertion"),
    f"{_METRICS}.completion.code_execution_pass_at_one": _names(
        f"{_HERE}.metrics.code",
        "CodeExecutionBaseContext CodeExecutionPassAtOne CodeExecutionPassAtOneContext CodeExecutionPassAtOneWithCodebench "
        "RealtimeCodeExectionContext estimate_pass_at_k",
    ),
    f"{_METRICS}.completion.multipl_e_assertion": _names(f"{_HERE}.metrics.multipl_e", "MultiPLECodeAssertion MultiPLEMetricContext"),
    f"{_METRICS}.completion.drop_completion": _names(f"{_HERE}.metrics.drop", "DropF1ExactMatch DropMetricContext"),
    f"{_METRICS}.completion.ifeval": _names(f"{_HERE}.metrics.ifeval", "IFEvalMetric IFEvalMetricContext"),
    f"{_METRICS}.completion.language_checker": _names(
        f"{_HERE}.metrics.language",
        "GermanCompletionChecker LanguageChecker LanguageConsistencyChecker LanguageRawConsistencyChecker",
    ),
    f"{_METRICS}.completion.math_minerva_completion": _names(
        f"{_HERE}.metrics.minerva",
        "MathMinervaCompletion MathMinervaCompletionDE MathMinervaCompletionRelaxed MathMinervaCompletionRelaxedDE",
    ),
    f"{_METRICS}.completion.math_reasoning_completion": _names(f"{_HERE}.metrics.math_reasoning", "MathReasoningCompletion"),
    f"{_METRICS}.completion.minerva_math_utils": {
        **_names(
            f"{_HERE}.metrics.math_answers",
            "COT_EXTRACTORS END_SEQ END_SEQ_DE INVALID_ANSWER REMOVED_EXPRESSIONS SUBSTITUTIONS _normalize_latex_core extract_answers "
            "get_unnormalized_answer get_unnormalized_answer_de last_boxed_only_string normalize_final_answer "
            "normalized_gold_from_solution remove_boxed",
        ),
        **_names(f"{_HERE}.metrics.math_equality", "is_equiv_hendrycks is_equiv_minerva strip_string_hendrycks"),
    },
    f"{_METRICS}.completion.text_counter": _names(
        f"{_HERE}.metrics.counts",
        "ParagraphCounter ParagraphCounterMetricContext ResponseToOriginalLengthRatio SentenceCounter SentenceCounterMetricContext "
        "WordCounter WordCounterMetricContext",
    ),
    f"{_METRICS}.llm.graders.models": _names(
        f"{_HERE}.graders", "FOFOPromptTemplate GradingOutput PromptTemplate PromptTemplateWithParseMap parse_json_output"
    ),
    f"{_METRICS}.llm.utils": _names(f"{_HERE}.judges", "order_answers_for_comparison"),
    **{f"{_METRICS}.llm.graders.{module}": dict.fromkeys(names.split(), f"{_HERE}.judges:JudgeOnly") for module, names in GRADERS.items()},
    "eval_framework.external.drop_process_results": _names(f"{_HERE}.external", "process_results=drop_results"),
    "eval_framework.external.ifeval_impl.utils": _names(f"{_HERE}.external", "process_results=ifeval_results"),
    "llm_sandbox": _names(f"{_HERE}.sandbox_sessions", "SandboxSession"),
    "llm_sandbox.const": _names(f"{_HERE}.sandbox_sessions", "DefaultImage SupportedLanguage"),
    "llm_sandbox.exceptions": _names(f"{_HERE}.code", "SandboxTimeoutError=ProgramTimeoutError"),
    "template_formatting.formatter": {
        **_names(f"{_HERE}.formatters", "BaseFormatter ConcatFormatter IdentityFormatter Llama3Formatter"),
        **_names(_RECORDS, "Message Role"),
    },
}
"""Module -> its names -> their places in this project."""

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
