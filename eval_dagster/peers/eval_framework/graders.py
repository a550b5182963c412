"""Parts of graders: templates of prompts for a judge, and the reading of its answer."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from eval_dagster.peers.eval_framework.errors import logger
from eval_dagster.records import Message, Role

_OBJECT = re.compile(r"\{.*\}", re.DOTALL)


class PromptTemplate(BaseModel):
    """A conversation of a system message and a question, with names in braces for the values."""

    system_prompt: str
    user_prompt: str

    @staticmethod
    def _format_string(template: str, format_dict: Mapping[str, str]) -> str:
        return template.format(**format_dict) if format_dict else template

    def to_messages(
        self, system_key_value_pairs: Sequence[tuple[str, str]], user_key_value_pairs: Sequence[tuple[str, str]]
    ) -> list[Message]:
        """The conversation with values. A message without values keeps its braces."""
        return [
            Message(Role.SYSTEM, self._format_string(self.system_prompt, dict(system_key_value_pairs))),
            Message(Role.USER, self._format_string(self.user_prompt, dict(user_key_value_pairs))),
        ]


class FOFOPromptTemplate(PromptTemplate):
    """A template whose names stand without braces, each once."""

    @staticmethod
    def _format_string(template: str, format_dict: Mapping[str, str]) -> str:
        for key, value in format_dict.items():
            if (count := template.count(key)) != 1:
                raise AssertionError(f"the template has {key!r} {count} times; expected it once: {template}")
            template = template.replace(key, value)
        return template


class PromptTemplateWithParseMap(PromptTemplate):
    """A template with the values of the judge's words."""

    parse_map: Mapping[Any, Any]


class GradingOutput(BaseModel):
    """The question to a judge, and its answer. A grader's own class has the values."""

    judge_prompt: str
    judge_response: str


def parse_json_output(output: str) -> dict[str, object]:
    """The JSON object in a text, from the first brace to the last; empty without one."""
    found = _OBJECT.search(output)
    try:
        return dict(json.loads(found[0])) if found else {}
    except ValueError as problem:
        logger.info(f"the judge's answer is no JSON: {problem}")
        return {}
