"""Writes the ctypes declarations of Weft's public headers, and the C file that checks them.

    generate_layout.py CC INCLUDE-FOLDER LAYOUT.PY LAYOUT.C

LAYOUT.PY has a class for every struct, a number for every enumerator and simple macro, and the
types of every function. LAYOUT.C has the same sizes, offsets and numbers as the compiler sees
them; weft_pipeline compares the two when it is imported.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from pycparser import c_ast, c_generator, c_parser

# What the headers need of the system, as types whose size does not matter to the parser.
SYSTEM_HEADERS = {
    "stdbool.h": "#define bool _Bool\n#define true 1\n#define false 0\n",
    "stddef.h": "typedef unsigned long size_t;\n#define NULL ((void *)0)\n",
    "stdint.h": "\n".join(
        f"typedef int {sign}int{bits}_t;" for sign in ("", "u") for bits in (8, 16, 32, 64)
    )
    + "\ntypedef unsigned long uintptr_t;\ntypedef long intptr_t;\n"
    + "#define UINT32_C(x) x\n#define UINT64_C(x) x\n"
    + "#define UINT32_MAX 4294967295\n#define UINT64_MAX 18446744073709551615\n",
}

SCALARS = {
    "_Bool": "c_bool",
    "char": "c_char",
    "signed char": "c_byte",
    "unsigned char": "c_ubyte",
    "short": "c_short",
    "unsigned short": "c_ushort",
    "int": "c_int",
    "unsigned": "c_uint",
    "unsigned int": "c_uint",
    "long": "c_long",
    "unsigned long": "c_ulong",
    "float": "c_float",
    "double": "c_double",
    "size_t": "c_size_t",
    "uintptr_t": "c_size_t",
    "intptr_t": "c_ssize_t",
    **{
        f"{sign}int{bits}_t": f"c_{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
    },
}


def preprocess(compiler, include):
    """The text of all headers, and their macros that are numbers."""
    headers = "".join(f"#include <weft/{file.name}>\n" for file in sorted(include.glob("weft/*.h")))
    with tempfile.TemporaryDirectory() as folder:
        for name, text in SYSTEM_HEADERS.items():
            (Path(folder) / name).write_text(text)
        command = [compiler, "-E", "-P", "-undef", "-nostdinc", "-I", folder, "-I", str(include)]

        def run(*more):
            return subprocess.run(
                [*command, *more, "-x", "c", "-"],
                input=headers,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            ).stdout

        text, macros = run(), run("-dM")
    numbers = {}
    for name, value in re.findall(r"^#define (WEFT_[A-Z0-9_]+) (.+)$", macros, re.M):
        value = re.sub(r"UINT(?:32|64)_C\(([0-9a-fx]+)\)", r"\1", value)
        value = re.sub(r"\b([0-9]+)[uUlL]+$", r"\1", value)
        value = value.replace("UINT32_MAX", "0xffffffff").replace("UINT64_MAX", "0x" + "f" * 16)
        if re.fullmatch(r"0x[0-9a-f]+|[0-9]+(\.[0-9]+)?(e[0-9]+)?", value):
            numbers[name] = value
    return text, dict(sorted(numbers.items()))


class Layout:
    """What the headers declare, as Python source."""

    def __init__(self, unit):
        self.structs = {}  # name: list of (field, type), in the order of definition
        self.opaque = set()
        self.enumerators = {}
        self.functions = {}
        self.typedefs = {}
        for node in unit.ext:
            self.declaration(node)

    def declaration(self, node):
        if isinstance(node, c_ast.Typedef):
            self.typedefs[node.name] = node.type
        elif isinstance(node, c_ast.Decl):
            kind = node.type
            if isinstance(kind, c_ast.FuncDecl):
                self.function(node.name, kind)
            elif isinstance(kind, (c_ast.Struct, c_ast.Union, c_ast.Enum)):
                self.define(kind)

    def define(self, kind):
        if isinstance(kind, c_ast.Enum):
            value = -1
            for item in kind.values.enumerators if kind.values else []:
                value = self.constant(item.value) if item.value else value + 1
                self.enumerators[item.name] = value
            return
        if isinstance(kind, c_ast.Union):
            raise SystemExit(f"generate_layout.py: a union, {kind.name}, is not supported")
        if kind.decls is None:
            if kind.name not in self.structs:
                self.opaque.add(kind.name)
            return
        fields = []
        for field in kind.decls:
            if isinstance(field.type, c_ast.Union) and field.name is None:
                field = self.one_name(kind.name, field.type)
            fields.append((field.name, self.type(field.type)))
        self.opaque.discard(kind.name)
        self.structs[kind.name] = fields

    def one_name(self, struct, union):
        """Of a field with several names for the same type, the first name."""
        if len({self.type(member.type) for member in union.decls}) > 1:
            raise SystemExit(f"generate_layout.py: a union of several types in {struct}")
        return union.decls[0]

    def constant(self, node):
        if node is None:
            raise SystemExit("generate_layout.py: an array without a length in a struct")
        if isinstance(node, c_ast.ID) and node.name in self.enumerators:
            return self.enumerators[node.name]
        text = re.sub(r"\b([0-9]+)[uUlL]+\b", r"\1", c_generator.CGenerator().visit(node))
        return int(eval(text, {"__builtins__": {}}, dict(self.enumerators)))

    def type(self, node):
        """The ctypes expression of a C type, as a field, an argument or a result."""
        if isinstance(node, c_ast.TypeDecl):
            return self.type(node.type)
        if isinstance(node, c_ast.IdentifierType):
            name = " ".join(node.names)
            if name not in SCALARS and name in self.typedefs:
                return self.type(self.typedefs[name])
            return "None" if name == "void" else SCALARS[name]
        if isinstance(node, c_ast.Enum):
            if node.values:
                self.define(node)
            return "c_int"
        if isinstance(node, c_ast.Struct):
            if node.decls is not None:
                self.define(node)
            elif node.name not in self.structs:
                self.opaque.add(node.name)
            return node.name
        if isinstance(node, c_ast.ArrayDecl):
            return f"({self.type(node.type)} * {self.constant(node.dim)})"
        if isinstance(node, c_ast.PtrDecl):
            return self.pointer(node.type)
        raise SystemExit(f"generate_layout.py: {type(node).__name__} is not supported")

    def pointer(self, to):
        if isinstance(to, c_ast.FuncDecl):
            arguments = ", ".join([self.type(to.type), *self.arguments(to)])
            return f"CFUNCTYPE({arguments})"
        name = self.type(to)
        if name == "None":
            return "c_void_p"
        constant = "const" in (getattr(to, "quals", None) or [])
        return "c_char_p" if name == "c_char" and constant else f"POINTER({name})"

    def arguments(self, function):
        result = []
        for parameter in function.args.params if function.args else []:
            node = parameter.type
            if isinstance(node, c_ast.ArrayDecl):
                result.append(self.pointer(node.type))
            elif not (isinstance(node, c_ast.TypeDecl) and self.type(node) == "None"):
                result.append(self.type(node))
        return result

    def function(self, name, node):
        parameters = node.args.params if node.args else []
        if any(isinstance(parameter, c_ast.EllipsisParam) for parameter in parameters):
            return  # of no use here
        self.functions[name] = (self.type(node.type), self.arguments(node))


def in_order(structs):
    """A struct after those that it holds by value."""
    done, result = set(), []

    def visit(name):
        if name in done:
            return
        done.add(name)
        for _, kind in structs[name]:
            by_value = re.fullmatch(r"\(*(weft_\w+)(?: \* \d+\))*", kind)
            if by_value and by_value.group(1) in structs:
                visit(by_value.group(1))
        result.append(name)

    for name in structs:
        visit(name)
    return result


def write_python(layout, numbers, file):
    lines = [
        '"""Weft\'s public headers for ctypes, written by generate_layout.py."""',
        "",
        "from ctypes import *",
        "",
    ]
    lines += [f"class {name}(Structure):\n    pass\n" for name in sorted(layout.opaque)]
    names = in_order(layout.structs)
    lines += [f"class {name}(Structure):\n    pass\n" for name in names]
    for name in names:
        fields = ", ".join(f'("{field}", {kind})' for field, kind in layout.structs[name])
        lines.append(f"{name}._fields_ = [{fields}]")
    lines += ["", *(f"{name} = {value}" for name, value in layout.enumerators.items())]
    lines += ["", *(f"{name} = {value}" for name, value in numbers.items())]
    lines += ["", f"STRUCTS = [{', '.join(names)}]"]
    lines.append(f"ENUMERATORS = {layout.enumerators!r}")
    lines.append("FUNCTIONS = {")
    for name, (result, arguments) in layout.functions.items():
        lines.append(f'    "{name}": ({result}, [{", ".join(arguments)}]),')
    lines += ["}", ""]
    file.write_text("\n".join(lines))


def write_c(layout, include, file):
    lines = ["/* Written by generate_layout.py; what _layout.py is compared with. */"]
    lines += [f"#include <weft/{header.name}>" for header in sorted(include.glob("weft/*.h"))]
    lines += ["", "WEFT_API extern const uint64_t weft_python_layout[];"]
    lines += ["", "const uint64_t weft_python_layout[] = {"]
    structs = layout.structs.values()
    count = sum(1 + 2 * len(fields) for fields in structs) + len(layout.enumerators)
    lines.append(f"  {count},")
    for name in in_order(layout.structs):
        lines.append(f"  sizeof(struct {name}),")
        for field, _ in layout.structs[name]:
            lines.append(f"  offsetof(struct {name}, {field}),")
            lines.append(f"  sizeof(((struct {name} *)0)->{field}),")
    lines += [f"  (uint64_t)(int64_t){name}," for name in layout.enumerators]
    lines += ["};", ""]
    file.write_text("\n".join(lines))


def main():
    if len(sys.argv) != 5:
        raise SystemExit(__doc__)
    include = Path(sys.argv[2])
    text, numbers = preprocess(sys.argv[1], include)
    layout = Layout(c_parser.CParser().parse(text))
    write_python(layout, numbers, Path(sys.argv[3]))
    write_c(layout, include, Path(sys.argv[4]))


main()
