"""The words by which servers say why a text ended, and what they mean."""

from collections.abc import Mapping
from typing import Literal

Ending = Literal["complete", "cut", "refused", "interrupted"]
"""`complete`: the model ended the text, or a stop sequence did. `cut`: the text may not be longer. `refused`: the provider keeps the text
or a part of it back. `interrupted`: the text ended for a reason that has nothing to do with it, and is asked for again."""
NONE = "null"
"""Stands for an answer without a reason."""

_WORDS: Mapping[Ending, str] = {
    "complete": "complete completed done end end_turn eos eos_token finish finished function_call natural_stop stop stop_sequence stop_str"
    " stop_token tool_call tool_calls tool_use",
    "cut": "length max_completion_tokens max_length max_new_tokens max_output_tokens max_tokens model_context_window_exceeded"
    " model_length token_limit",
    "refused": "blocked blocklist content_blocked content_filter content_filtered content_policy data_inspection_failed error_toxic"
    " guardrail guardrail_intervened guardrails image_safety policy_violation prohibited_content recitation refusal safety sensitive spii",
    "interrupted": "abort aborted cancel canceled cancelled disconnect disconnected error error_limit failed incomplete"
    " insufficient_system_resource internal_error interrupted load malformed_function_call network_error other overloaded pause_turn"
    " preempted server_error timeout timed_out unavailable unexpected_tool_call unknown user_cancel unspecified",
}
"""The words of OpenAI, Azure, Anthropic, Gemini, Mistral, DeepSeek, Zhipu, Cohere, Bedrock, OpenRouter, vLLM, SGLang, TGI and llama.cpp."""
_ENDINGS: Mapping[str, Ending] = {word: ending for ending, words in _WORDS.items() for word in words.split()}
_PREFIX = "finish_reason_"


def ending_of(word: str | None, own: Mapping[str, Ending]) -> Ending | None:
    """The meaning of a word; None if it is unknown.

    Args:
        word: As the server wrote it; None if it gave none, which counts as an interruption.
        own: The words of this server, by evals.yaml. The key `null` is an answer without a word.
    """
    if word is None:
        return own.get(NONE, "interrupted")
    if word in own:
        return own[word]
    return _ENDINGS.get(word.strip().lower().replace("-", "_").replace(" ", "_").removeprefix(_PREFIX))
