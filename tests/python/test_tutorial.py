"""docs/python.md and the notebook: they run, and give what stands in them."""

import ast
import contextlib
import io
import json
import re
from pathlib import Path

TUTORIAL = Path(__file__).parent.parent.parent / "docs" / "python.md"
NOTEBOOK = TUTORIAL.parent.parent / "examples" / "schedules.ipynb"
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
