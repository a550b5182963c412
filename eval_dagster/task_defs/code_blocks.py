"""Programs in answers of chat models: the content of a Markdown fence."""

import re

_FENCED = re.compile(r"^[ \t]*```[ \t]*\w*[ \t]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)


def code_block(text: str) -> str:
    """The content of the first fenced block that is not empty; an open block ends with the text. Without a block, the text itself."""
    return next((block for block in _FENCED.findall(text) if block.strip()), text)
