"""Prints what each module of a Python package imports: module, imported module, line.

Run with the folder that holds the package, and the package's name. A text that is exactly the name
of a module counts as an import of it, because `import_module` takes one; the name of a logger does
not. Modules of the standard library are left out; `__init__` stands for a package itself.
"""

import ast
import sys
from pathlib import Path

FOLDER, PACKAGE = Path(sys.argv[1]), sys.argv[2]
FILES = {
    ".".join(file.relative_to(FOLDER).with_suffix("").parts): file
    for file in sorted((FOLDER / PACKAGE).rglob("*.py"))
}


def full_name(name: str) -> str:
    """The module's name in `FILES`."""
    return f"{name}.__init__" if f"{name}.__init__" in FILES else name


def imported(node: ast.AST, module: str) -> list[str]:
    """The modules that the node names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        # One level is the module's own package.
        parent = module.split(".")[: -node.level] if node.level else []
        base = ".".join([*parent, *([node.module] if node.module else [])])
        names = [f"{base}.{alias.name}" for alias in node.names]
        return [name if full_name(name) in FILES else base for name in names]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        is_module = "." in node.value and full_name(node.value) in FILES
        return [node.value] if is_module else []
    return []


def logger_names(tree: ast.AST) -> set[ast.AST]:
    """Texts that name a logger."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {name for call in calls if "getLogger" in ast.dump(call.func) for name in call.args}


for module, file in FILES.items():
    tree = ast.parse(file.read_bytes(), str(file))
    for node in set(ast.walk(tree)) - logger_names(tree):
        for name in imported(node, module):
            if name.partition(".")[0] not in {*sys.stdlib_module_names, "__future__"}:
                print(module, full_name(name), getattr(node, "lineno", 1))
