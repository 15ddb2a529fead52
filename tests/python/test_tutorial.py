"""docs/python.md, five minutes of docs/pytorch.md and the notebook: run, with what they print."""

import ast
import contextlib
import io
import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parent.parent.parent / "docs" / "python.md"
NOTEBOOK = TUTORIAL.parent.parent / "examples" / "schedules.ipynb"
MODULES = {"PyTorch": "torch"}
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.S)


@pytest.mark.parametrize("page, section", [("python.md", None), ("pytorch.md", "Five minutes")])
def test_page(page, section):
    names = {}
    text = (TUTORIAL.parent / page).read_text(encoding="utf-8")
    if section:  # the other blocks of that page need a job of PyTorch
        text = text.split(f"\n## {section}\n")[1].split("\n## ")[0]
    blocks = BLOCK.findall(text)
    assert len(blocks) > 5
    for source, expected in blocks:
        needed = re.search("# needs (PyTorch|pandas)", source)
        if needed and find_spec(MODULES.get(needed[1], needed[1])) is None:
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, str(TUTORIAL), "exec"), names)
        assert printed.getvalue() == expected, source


KINDS = {"text/html": "_repr_html_", "image/svg+xml": "_repr_svg_"}


def test_notebook():
    names = {}
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        *body, last = ast.parse("".join(cell["source"])).body
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(ast.Module(body, []), "notebook", "exec"), names)
            value = eval(compile(ast.Expression(last.value), "notebook", "eval"), names)
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                assert "".join(output["text"]) == printed.getvalue()
            else:
                data = output["data"]
                plain = "".join(data.pop("text/plain"))
                assert plain.startswith("array") or plain == repr(value)
                for kind in data:  # pictures may change, but they are there
                    assert getattr(value, KINDS[kind])()[:4] == "".join(data[kind])[:4]
