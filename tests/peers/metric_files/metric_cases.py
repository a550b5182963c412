"""Invented responses for the metrics of eval-framework. Both environments read them as one JSON document; they need Python alone."""

import json
from typing import Any

from choice_cases import LOGLIKELIHOODS
from code_cases import CODE
from judge_cases import JUDGES
from writing import Case, asked, context, metric, text

SENTENCE = "The quick brown fox jumps over the lazy dog."
OVERLAPS = [
    text(SENTENCE, SENTENCE),
    text("A quick fox jumps over a dog", SENTENCE),
    text("fox fox fox quick", [SENTENCE, "fox quick fox"]),
    text("nothing here", SENTENCE),
    text(" \n ", SENTENCE),
    text("dog", "dog"),
    text("Größe", None),
    text("word", []),
]
ANSWERS = [
    text("Paris", "Paris"),
    text("paris.", "Paris"),
    text("Rome", ["Paris", "Rome"]),
    text("First 2 + 2.\n#### $1,234.", ["1234", "1,234"]),
    text("Paris", None),
    text("Paris", []),
]
COUNTED = "Mr. Jones paid $10,000.00... And then he left. Is it 5.10?\n\nHe went to www.example.com, Ph.D. in hand.\n \nI.B.M. Inc. won!"


def _counts(name: str, field: str, number: int) -> list[Case]:
    def given(comparison: str, wanted: int) -> Any:
        return context(f"completion.text_counter:{name}MetricContext", comparison=comparison, **{field: wanted})

    wanted = [("at least", number), ("at least", number + 1), ("less than", number), ("less than", number + 1), ("exactly", number)]
    found = [text(COUNTED, context=given(*each)) for each in wanted]
    return [*found, text(COUNTED), text("One.", context=[context("shared:LanguageMetricContext", language="en"), given("at least", 1)])]


def _json_truth(schema: Any, **others: Any) -> str:
    return json.dumps({"json_schema": schema, **others})


PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name"]}
JSON_CASES = [
    text('{"name": "Ada", "age": 36}', _json_truth(PERSON, expected_output={"name": "Ada", "age": 36})),
    text('{"name": "Ada"}', _json_truth(PERSON, expected_output={"name": "Bob"})),
    text('{"age": "old"}', _json_truth(PERSON)),
    text('Here it is: ```json\n{"name": "Ada", // her name\n "age": 36}\n``` [1]', _json_truth(PERSON, expected_output=[1])),
    text("no JSON at all", _json_truth(PERSON, expected_output={})),
    text("no JSON at all", _json_truth(None)),
    text("[1, 2]", _json_truth(None, expected_output=[1, 2])),
    text('{"a": 1}', _json_truth({"type": "nonsense"})),
    text("null", _json_truth({"type": "null"}, expected_output=None)),
    text('{"a": 1}', "not JSON"),
]
GRID = "Fill it.\nBelow is the input grid with masked regions:\n1 X\nX 4\nPlease output the completed grid"
GRIDS = [
    text("1 2\n3 4", "1 2\n3 4", messages=asked(GRID)),
    text("1 2\n9 4", ["1 2\n3 4"], messages=asked(GRID)),
    text("7 7\n7 7", "1 2\n3 4", messages=asked(GRID)),
    text("1 9", "1 2", messages=asked("no grid")),
    text("1 2", "", messages=asked(GRID)),
    text("9 X\nX 4", "1 X\nX 4", messages=asked(GRID)),
]


def _length(count: int, unit: str, kind: str) -> str:
    return json.dumps({"count": count, "unit": unit, "type": kind})


LENGTHS = [
    text("one two three four five six", _length(6, "words", "target")),
    text("one two three four five", _length(6, "words", "target")),
    text("one two three four", _length(6, "words", "target")),
    text("one two three", _length(2, "words", "minimum")),
    text("one", _length(2, "words", "minimum")),
    text("One. Two! Three?", _length(2, "sentences", "maximum")),
    text("One.\n\nTwo.", _length(2, "paragraphs", "maximum")),
    text("one", _length(2, "lines", "maximum")),
    text("one", _length(2, "words", "about")),
    text("one", _length(0, "words", "target")),
    text("one", "not JSON"),
]


def _csv(separator: str | None, *columns: str) -> str:
    return json.dumps({"separator": separator, "columns": columns})


TABLES = [
    text("a,b\n1,2\n3,4", _csv("comma", "a", "b")),
    text("Here:\na;b;c\n1;2;3", _csv("comma", "a", "b", "c")),
    text("a\tb\n1\t2", _csv("tab", "a", "b", "c")),
    text("a;b\n1;2", _csv(None, "a", "b")),
    text("nothing", _csv("comma", "a", "b")),
    text("a,b\n1,2", "not JSON"),
]


def _ifeval(*instructions: tuple[str, dict[str, Any]]) -> Any:
    names = [name for name, _ in instructions]
    given = [{"num_words": None, "keywords": None, **each} for _, each in instructions]
    return context("completion.ifeval:IFEvalMetricContext", key=1, instruction_id_list=names, prompt="Write.", additional_kwargs=given)


NO_COMMA = ("punctuation:no_comma", {})
IFEVAL = [
    text("A text without them", context=_ifeval(NO_COMMA)),
    text("One, two", context=_ifeval(NO_COMMA)),
    text("One, two fox", context=_ifeval(NO_COMMA, ("keywords:existence", {"keywords": ["fox"]}))),
    text("*fox*\nall in lower case", context=_ifeval(("change_case:english_lowercase", {}), ("startend:quotation", {}))),
    text("Hi,\nsome words", context=_ifeval(NO_COMMA, ("length_constraints:number_words", {"num_words": 2.0, "relation": "at least"}))),
    text("* a\n* b", context=_ifeval(("detectable_format:number_bullet_lists", {"num_bullets": 2}))),
    text("[name] and [place]", context=_ifeval(("detectable_content:number_placeholders", {"num_placeholders": 2}))),
    text("none"),
]
MATH = [
    text("\\frac{1}{2}", "0.5"),
    text("$x = 3$", "3"),
    text("x=3", "y=x=3"),
    text("1,000", "1000"),
    text("5 cm", "5"),
    text("\\sqrt{8}", ["2\\sqrt{2}", "3"]),
    text("(1,2)", "(1,2)"),
    text("\\infty", "\\infty"),
    text("\\frac{", "7"),
    text("seven", "7"),
    text("2", None),
]
FINAL = "Final Answer: The final answer is ${}$. I hope it is correct."
FINALE = "Finale Antwort: Die finale Antwort lautet ${}$. Ich hoffe, die Antwort ist korrekt."
MINERVA = [
    text("", raw=f"So 2 + 2 = 4. {FINAL.format('4')}", truth="4"),
    text("5", raw=f"So. {FINAL.format('5')}", truth=["4"]),
    text("x", raw=f"Also. {FINALE.format('x^2+1')}", truth="1+x^2"),
    text("x", raw="The final answer: the answer is $\\frac{1}{2}$", truth="\\frac{1}{2}"),
    text("x", raw="Endgültige Antwort: 12", truth="12"),
    text("x", raw="We get \\boxed{7} or \\boxed{8}", truth="8"),
    text("9", raw="", truth="9"),
    text("no answer", truth="9"),
    text("9", truth=None),
    text("9", truth=[]),
]
TEXTS: list[Case] = [
    *metric("completion.accuracy_completion", "AccuracyCompletion AccuracyCompletionOLMES", ANSWERS),
    *metric(
        "completion.accuracy_completion",
        "AccuracyCompletionWithEvaluate",
        ANSWERS,
        regexes_to_ignore=["#### "],
        ignore_case=True,
        ignore_punctuation=True,
    ),
    *metric("completion.f1", "F1 F1SquadNormalized", OVERLAPS),
    *metric("completion.rouge_1", "ROUGE_1", OVERLAPS),
    *metric("completion.rouge_2", "ROUGE_2", OVERLAPS),
    *metric("completion.rouge_l", "ROUGE_L", OVERLAPS),
    *metric("completion.rouge_geometric_mean", "ROUGE_GEOMETRIC_MEAN", OVERLAPS),
    *metric(
        "completion.concordance_index",
        "ConcordanceIndex",
        [
            text("[1, 2, 3]", "[1, 2, 3]"),
            text("[1, 9, 3]", ["[1, 2, 3]", "[9, 9, 3]"]),
            text("[1]", "[1, 2]"),
            text("[]", "[]"),
            text("one, two", "[1, 2]"),
            text("[1]", None),
        ],
    ),
    *metric("completion.csv_format", "CSVFormat", TABLES),
    *metric(
        "completion.drop_completion",
        "DropF1ExactMatch",
        [
            text(answer, context=context("completion.drop_completion:DropMetricContext", answer_tuples=golds))
            for answer, golds in [
                ("amber, cedar", [["cedar", "amber"]]),
                ("the amber", [["amber"], ["cedar"]]),
                ("12 birds", [["12"], ["12.0 birds"]]),
                ("amber", [["amber cedar", "delta"]]),
                ("13", [["12"]]),
                (",", [["amber"]]),
                ("amber", [[""], []]),
            ]
        ]
        + [text("amber")],
    ),
    *metric(
        "completion.exponential_similarity",
        "ExponentialSimilarity",
        [
            text("50", "50"),
            text("40", ["50", "45"]),
            text("about 50", "50"),
            text("50", ["none", "60"]),
            text("50", None),
            text("1e400", "50"),
            text("nan", "50"),
        ],
    ),
    *metric(
        "completion.format_checker",
        "CheckJsonFormat CheckPostScriptFormat",
        [
            text('```json\n{"a": [1, 2]}\n```'),
            text("{'a': 1}"),
            text(" 12 "),
            text("Dear all.\n P.S. Bring cake."),
            text("P.P.S. One more"),
            text("P. S. no"),
        ],
    ),
    *metric("completion.grid_difference", "GridDifference", GRIDS),
    *metric("completion.ifeval", "IFEvalMetric", IFEVAL),
    *metric("completion.json_format", "JsonFormat", JSON_CASES),
    *metric("completion.length_control", "LengthControl", LENGTHS),
    *metric("completion.math_reasoning_completion", "MathReasoningCompletion", MATH),
    *metric(
        "completion.math_minerva_completion",
        "MathMinervaCompletion MathMinervaCompletionRelaxed MathMinervaCompletionDE MathMinervaCompletionRelaxedDE",
        MINERVA,
    ),
    *metric(
        "completion.placeholder_checker",
        "PlaceholderChecker",
        [
            text(answer, context=context("completion.placeholder_checker:PlaceholderCheckerMetricContext", num_placeholders=count))
            for answer, count in [("[name] lives in [place]", 2), ("[name]", 2), ("none", 0), ("[a\nb]", 1)]
        ]
        + [text("[name]")],
    ),
    *metric(
        "completion.repetition",
        "WordRepetition",
        [text("hello world hello world"), text("hello world"), text("a b a b a b"), text("hello, hello hello")],
        window_size=2,
    ),
    *metric("completion.text_counter", "WordCounter", _counts("WordCounter", "word_count", 26)),
    *metric("completion.text_counter", "SentenceCounter", _counts("SentenceCounter", "sentence_count", 6)),
    *metric("completion.text_counter", "ParagraphCounter", _counts("ParagraphCounter", "paragraph_count", 2)),
    *metric(
        "completion.text_counter",
        "ResponseToOriginalLengthRatio",
        [
            text("short", messages=asked("A long question?")),
            text("longer than it", messages=[["system", "Be kind."], *asked("Why?"), ["assistant", "So"]]),
            text("alone", messages=[["system", "Be kind."]]),
        ],
    ),
    *metric(
        "efficiency.bytes_per_sequence_position",
        "BytesCompletion SequencePositionsCompletion",
        [text("answer", concat_compression=[120, 31]), text("answer")],
    ),
]
_ENGLISH, _GERMAN = "The weather is very nice today, is it not?", "Das Wetter ist heute wirklich sehr schön, oder nicht?"
LANGUAGES: list[Case] = [
    case | {"needs": "lingua"}
    for case in metric(
        "completion.language_checker",
        "LanguageChecker GermanCompletionChecker LanguageConsistencyChecker LanguageRawConsistencyChecker",
        [
            text(_ENGLISH, "en", messages=asked(_ENGLISH)),
            text(_GERMAN, "en", messages=asked(_ENGLISH)),
            text(_ENGLISH, "de", raw=_GERMAN, messages=asked(_GERMAN)),
            text("", "de", messages=asked("")),
            text("?!", "fr", messages=asked(_GERMAN)),
            text(_ENGLISH, "de", messages=asked(_ENGLISH), context=context("shared:LanguageMetricContext", language="de")),
            text(_ENGLISH, "xx", messages=asked(_ENGLISH)),
            text(_ENGLISH, None, messages=asked(_ENGLISH)),
        ],
    )
]
CASES: list[Case] = [*TEXTS, *LANGUAGES, *LOGLIKELIHOODS, *CODE, *JUDGES]
