"""Cases of metrics that ask a judge. The judge of a response gives the text of its field `judge`, or fails where there is none."""

import json
from typing import Any

from writing import Case, asked, context, metric, text

NO_JSON = "I cannot say."


def _in(language: str) -> Any:
    return context("shared:LanguageMetricContext", language=language)


def _judged(replies: list[str], *, truth: Any = None, languages: tuple[str, ...] = ("en", "de", "fr", "xx")) -> list[Case]:
    """Each reply in the first language, and the first reply in the others."""
    shared: dict[str, Any] = {"truth": truth, "messages": [["system", "Be kind."], *asked("Why is {sky} blue?")]}
    pairs = [(reply, languages[0]) for reply in replies] + [(replies[0], language) for language in languages[1:]]
    found = [text("It <|scatters|> light {so}.", judge=reply, context=_in(language), **shared) for reply, language in pairs]
    detected = text("The light is scattered by the air.", judge=replies[0], truth=truth, messages=asked("Why is the sky blue in summer?"))
    return [*found, text("It is.", context=_in(languages[0]), **shared), detected | {"needs": "lingua"}]


def _about(**fields: Any) -> str:
    return f"My verdict: {json.dumps({'thought_process': 'none', **fields})} Bye."


GRADES = {
    "is_following_instruction": True,
    "has_correct_grammar_and_spelling": False,
    "is_contradicting_context": False,
    "is_repeating": True,
}
CONVERSATION = [*asked("Who are you?"), ["assistant", "Ada."], ["user", "And I?"]]


def _bench(kind: str, replies: list[str]) -> list[Case]:
    name = f"llm.llm_judge_mtbench_{kind.lower()}:MTBenchJudge{kind}MetricContext"
    given = {"category": "writing", "reference": None} | ({"answer": ["Bob.", "Eve."]} if kind == "Pair" else {})

    def case(reply: str, **others: Any) -> Case:
        fields = given | {key: others.pop(key) for key in ("category", "reference") if key in others}
        return text("You are Bob.", judge=reply, context=context(name, **fields), **{"messages": asked("Who?"), **others})

    return [
        *(case(reply) for reply in replies),
        *(case(replies[0], subject=subject) for subject in ("de_writing", "fi_writing")),
        case(replies[0], messages=CONVERSATION),
        case(replies[0], category="math", reference=["I am Bob."]),
        case(replies[0], category="math", reference=["I am Bob.", "You are."], messages=CONVERSATION),
        case(replies[0], category="math"),
        text("You are Bob.", messages=asked("Who?"), context=context(name, **given)),
        text("You are Bob.", judge=replies[0]),
    ]


SCHEMA = "CREATE TABLE birds (name TEXT, legs INTEGER); INSERT INTO birds VALUES ('heron', 2), ('lark', 2);"
SQL_GRADE = _about(query_quality="B")


def _query(completion: str, *, truth: Any = "SELECT name FROM birds ORDER BY name;", reply: str = SQL_GRADE, **fields: Any) -> Case:
    given = context("llm.llm_judge_sql:LLMJudgeSqlMetricContext", **{"language": "en", "dialect": "sqlite", "db_schema": SCHEMA, **fields})
    return text(completion, truth, judge=reply, context=given)


SQL = [
    _query("SELECT name FROM birds ORDER BY name;"),
    _query("```sql\nSELECT name, legs FROM birds;\n```"),
    _query("Here it is:\nSELECT name FROM birds WHERE legs > 2;", reply=_about(query_quality="mangelhaft"), language="de"),
    _query("SELECT wings FROM birds;", reply=NO_JSON),
    _query("no query", dialect="standard_sql"),
    _query("SELECT name FROM birds;", db_schema="CREATE nonsense;"),
    _query("SELECT name FROM birds;", dialect="oracle"),
    _query("SELECT name FROM birds;", truth=None),
]
_YES_NO = {
    "chatbot_style": ("ChatbotStyle", "is_chatbot_style"),
    "conciseness": ("Conciseness", "is_concise"),
    "contains_names": ("AvoidsNames", "contains_names"),
    "format_correctness": ("FormatCorrectness", "format_correctness"),
    "refusal": ("Refusal", "is_refusal"),
    "world_knowledge": ("WorldKnowledge", "contains_world_knowledge"),
}
JUDGES: list[Case] = [
    *(
        case
        for module, (name, field) in _YES_NO.items()
        for case in metric(
            f"llm.llm_judge_{module}",
            f"LLMJudge{name}",
            _judged([_about(**{field: True}), _about(**{field: False}, reasons=["one", "two"]), _about(), NO_JSON, "{not JSON}"]),
        )
    ),
    *metric(
        "llm.llm_judge_completion_accuracy",
        "LLMJudgeCompletionAccuracy",
        _judged([_about(answer_is_correct=True), _about(answer_is_correct=False), NO_JSON], truth="light"),
    ),
    *metric(
        "llm.llm_judge_coherence",
        "LLMJudgeCoherence",
        _judged(["Good. <coherence_score>3</coherence_score>", "<coherence_score>x</coherence_score>", NO_JSON]),
    ),
    *metric(
        "llm.llm_judge_instruction",
        "LLMJudgeInstruction",
        [
            *_judged([_about(quality="B", **GRADES), _about(quality="Z", is_harmful=True, is_deceitful=False), NO_JSON]),
            text("Se on.", judge=_about(quality="5"), context=_in("fi")),
            text("Es ist.", judge=_about(quality="gut"), context=_in("de")),
        ],
    ),
    *metric("llm.llm_judge_mtbench_pair", "MTBenchJudgePair", _bench("Pair", ["So [[A]]", "[[B]]", "[[C]]", "[[D]]", NO_JSON])),
    *metric(
        "llm.llm_judge_mtbench_pair", "MTBenchJudgePair", [each | {"id": 2} for each in _bench("Pair", ["[[A]]"])], randomize_order=True
    ),
    *metric("llm.llm_judge_mtbench_single", "MTBenchJudgeSingle", _bench("Single", ["So [[7]]", "[[ten]]", NO_JSON])),
    *metric("llm.llm_judge_sql", "LLMJudgeSql", SQL),
]
