"""Which planet does a moon orbit?"""

from eval_dagster import BaseTask, ExactMatch, ResponseType, Row


class Moons(BaseTask[str]):
    """Moons of the solar system, each with its planet; the rows are CSV files beside evals.yaml."""

    NAME = "Moons"
    DATASET_PATH = "./questions"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "train"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = (ExactMatch,)
    STOP_SEQUENCES = ("\n",)
    MAX_TOKENS = 8

    def _get_instruction_text(self, item: Row) -> str:
        return f"Question: Which planet does {item['moon']} orbit?\nAnswer:"

    def _get_ground_truth(self, item: Row) -> str:
        return str(item["planet"])

    def _get_fewshot_target_text(self, item: Row) -> str:
        return f" {item['planet']}"
