"""What judges of eval-framework are made of. Evals have no judge model, so that nothing of it can be used."""

from typing import Any

from eval_dagster.errors import RequirementError

GRADERS = {
    "chatbot_style_grader": "ChatbotStyleGrader ChatbotStyleGradingOutput",
    "coherence_grader": "CoherenceGrader CoherenceGradingOutput",
    "comparison_grader": "ComparisonGrader ComparisonGradingOutput MatchOutcome",
    "conciseness_grader": "ConcisenessGrader ConcisenessGradingOutput",
    "contains_names_grader": "ContainsNamesGrader ContainsNamesGradingOutput",
    "format_correctness_grader": "FormatCorrectnessGrader FormatCorrectnessOutput",
    "instruction_grader": "InstructionGrader InstructionGradingOutput",
    "long_context_grader": "LongContextGrader LongContextGradingOutput",
    "models": "FOFOPromptTemplate GradingOutput PromptTemplate PromptTemplateWithParseMap parse_json_output",
    "refusal_grader": "RefusalGrader RefusalGradingOutput",
    "sql_quality_grader": "SqlQualityGrader SqlQualityGradingOutput",
    "summary_world_knowledge_grader": "SummarizationWorldKnowledgeGrader SummarizationWorldKnowledgeGradingOutput",
}
"""Modules of eval-framework's graders and their names."""


class JudgeOnly:
    """Replaces each of these names."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Raises `RequirementError`."""
        raise RequirementError("this asks a judge model, and evals have none; give a metric that computes its value")


def order_answers_for_comparison(answer_1: str, answer_2: str, swap: bool) -> tuple[str, str]:
    """Two answers in their order, or the other way round."""
    return (answer_2, answer_1) if swap else (answer_1, answer_2)
