"""Programs in answers of chat models: what stands in a fence of Markdown."""

import re

_FENCED = re.compile(r"^[ \t]*```[ \t]*\w*[ \t]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)


def code_block(text: str) -> str:
    """The content of the first fenced block that has some, open to the end if it is never closed; without any, the text itself."""
    return next((block for block in _FENCED.findall(text) if block.strip()), text)
