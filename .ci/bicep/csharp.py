"""Parses the C# that `highwater init --handler csharp` writes and the docs show, since nothing here compiles C#. Fields of
rows are planted where `init` puts them. Checks that a planted mistake is found."""

import os
import sys

import tree_sitter_c_sharp
from tree_sitter import Language, Parser

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDERS = ("src/cli/init/receiver/csharp", "docs/receivers/csharp")
PAGES = ("docs/tutorials/csharp.md", "docs/receivers/README.md")
PLACEHOLDERS = {
    "Poller": "Orders",
    "poller": "orders",
    "table": "dbo.orders",
    "key_fields": "    /// <summary><c>int</c></summary>\n    public required int Id { get; init; }\n",
    "row_fields": "    /// <summary><c>varbinary(20)</c></summary>\n    public required byte[]? Data { get; init; }\n",
    "key_values": '        Id = Column.Required(columns, "id", Column.AsInt32),',
    "row_values": '        Data = Column.NullableReference(columns, "data", Column.AsBytes),',
}
PARSER = Parser(Language(tree_sitter_c_sharp.language()))


def broken(node):
    """The innermost node with an error, if there is one."""
    if not node.has_error:
        return None
    inner = next((found for child in node.children if (found := broken(child))), None)
    return inner or node


def problems(files):
    for path, text in files.items():
        node = broken(PARSER.parse(text.encode()).root_node)
        if node is not None:
            yield f"{path}: syntax error near line {node.start_point[0] + 1}"
        if "@@" in text:
            yield f"{path}: a placeholder is left"


def main():
    files = {}
    for folder in FOLDERS:
        for at, _, names in os.walk(os.path.join(ROOT, folder)):
            for path in (os.path.join(at, name) for name in names if name.endswith(".cs")):
                with open(path, encoding="utf-8") as file:
                    text = file.read()
                for name, value in PLACEHOLDERS.items():
                    text = text.replace(f"@@{name}@@", value)
                files[os.path.relpath(path, ROOT)] = text
    for page in PAGES:
        with open(os.path.join(ROOT, page), encoding="utf-8") as file:
            blocks = file.read().split("```csharp\n")[1:]
        files.update({f"{page}, block {at}": block.split("```")[0] for at, block in enumerate(blocks, 1)})
    errors = list(problems(files))
    for path, text in files.items():
        if not list(problems({path: "".join(text.rsplit(")", 1))})):
            errors.append(f"csharp.py: a missing parenthesis in {path} was not found")
    print("\n".join(errors) or f"{len(files)} files of C# parse")
    return 1 if errors or len(files) < 8 else 0


if __name__ == "__main__":
    sys.exit(main())
