"""Rows that become Docs, as they are written for lighteval, under its names."""

from typing import Any

from lighteval.tasks.requests import Doc, SamplingMethod

from eval_dagster.metrics.completion import ExactMatch
from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood, AccuracyPMILoglikelihood
from eval_dagster.metrics.perplexity import BitsPerByteLoglikelihood
from eval_dagster.tasks.doc import doc_task


@doc_task(dataset_path="somebody/moons", sample_split="test", fewshot_split="train", metrics=[AccuracyLoglikelihood])
def moons(row: dict[str, Any], task_name: str) -> Doc:
    """Which planet a moon circles."""
    return Doc(
        query=f"{row['moon']} circles",
        choices=row["planets"],
        gold_index=row["planets"].index(row["planet"]),
        instruction="Name a planet.",
        task_name=task_name,
    )


@doc_task(dataset_path="somebody/moons", sample_split="test", metrics=[AccuracyLoglikelihood])
def moons_with_two_answers(row: dict[str, Any]) -> Doc:
    """Several choices are correct."""
    return Doc(query="A planet with moons:", choices=["Jupiter", "Venus", "Saturn"], gold_index=[0, 2])


@doc_task(dataset_path="somebody/moons", sample_split="test", metrics=[ExactMatch])
def moon_tale(row: dict[str, Any]) -> Doc:
    """Text without a reference."""
    return Doc(query=f"Tell of {row['moon']}.", choices=[], gold_index=0, generation_size=60, stop_sequences=["\n\n", "The Moon"])


@doc_task(dataset_path="somebody/moons", sample_split="test", metrics=[ExactMatch])
def moons_with_examples(row: dict[str, Any]) -> Doc:
    """Examples of the Doc's own."""
    return Doc(
        query=f"{row['moon']} circles:",
        choices=[row["planet"], "Mercury"],
        gold_index=0,
        fewshot_samples=[
            Doc(query="Triton circles:", choices=["Venus", "Neptune"], gold_index=1),
            Doc(query="Charon circles:", choices=["Pluto"], gold_index=0),
        ],
    )


@doc_task(dataset_path="somebody/moons", sample_split="test", metrics=[AccuracyLoglikelihood])
def moon_pictures(row: dict[str, Any]) -> Doc:
    """A picture of the row."""
    return Doc(query="Which moon is this?", choices=[row["moon"], "none"], gold_index=0, images=[row["picture"]])


@doc_task(dataset_path="somebody/moons", sample_split="test", metrics=[AccuracyPMILoglikelihood, BitsPerByteLoglikelihood])
def moons_without_the_question(row: dict[str, Any]) -> Doc:
    """What the choices are worth without the question, and what the sentence is."""
    return Doc(
        query=f"{row['moon']} circles",
        choices=[" Mars", " Saturn"],
        gold_index=0,
        unconditioned_query="It circles",
        sampling_methods=[SamplingMethod.LOGPROBS, SamplingMethod.PERPLEXITY],
    )
