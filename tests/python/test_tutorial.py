"""docs/python.md: its blocks run in order, and print what stands below them."""

import contextlib
import io
import re
from pathlib import Path

TUTORIAL = Path(__file__).parent.parent.parent / "docs" / "python.md"
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.S)


def test_tutorial():
    names = {}
    blocks = BLOCK.findall(TUTORIAL.read_text(encoding="utf-8"))
    assert len(blocks) > 5
    for source, expected in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, str(TUTORIAL), "exec"), names)
        assert printed.getvalue() == expected, source
