"""The rules of the house that no linter knows, as small pure functions.

Each takes a text (or an `ast` tree) and returns what is wrong with it, one line for each finding.
`tests/project/unit/test_tidy.py` runs them over the repository, and over samples that break them.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 70
MAX_FILE_BYTES = 500_000

TOP_LEVEL = {
    ".ci",
    ".editorconfig",
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "bench",
    "docs",
    "examples",
    "pyproject.toml",
    "requirements.lock",
    "src",
    "tests",
    "tools",
}
EXTENSIONS = {
    "css",
    "html",
    "js",
    "json",
    "lock",
    "md",
    "properties",
    "py",
    "sql",
    "svg",
    "toml",
    "typed",
}
WITHOUT_EXTENSION = {
    ".ci/run",
    ".editorconfig",
    ".gitignore",
    "LICENSE",
    "Makefile",
    "tools/steady",
}

# Time, randomness and ids are handed in. Names that end in a dot ban all that is below them.
FROM_THE_AIR = (
    "anyio.current_time",
    "anyio.sleep",
    "asyncio.sleep",
    "datetime.date.today",
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
    "os.getrandom",
    "os.urandom",
    "random.",
    "secrets.",
    "time.clock_gettime",
    "time.clock_gettime_ns",
    "time.monotonic",
    "time.monotonic_ns",
    "time.perf_counter",
    "time.perf_counter_ns",
    "time.sleep",
    "time.time",
    "time.time_ns",
    "uuid.uuid1",
    "uuid.uuid4",
)
_AIRY = {name.partition(".")[0] for name in FROM_THE_AIR}
SEEDED = "random.Random"  # fine with a seed, from the air without one

_HOSTS = re.compile(
    r"(?:\bpypi|pythonhosted|npmjs|yarnpkg|\bdeb[.]debian|\bcrates|anaconda)[.](?:org|com|io)\b",
    re.IGNORECASE,
)
_MACHINE_PATH = re.compile(r"(?<![\w.*/-])/(?:Users|home|mnt|opt|root|work)/")
_POINTER = re.compile(r"See ``[\w.]+``\.?")
_TWINS = ("overload", ".setter", "override")  # another of the same name says what it does
_UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")
_SQL = re.compile(
    r"""^\s*(?:SELECT|INSERT|UPDATE|DELETE|REPLACE|MERGE|CREATE|ALTER|DROP|TRUNCATE|WITH)\s
      | (?i:\b(?:
          select\s.+\sfrom\s | insert\s+(?:or\s+\w+\s+)?into\s | update\s+\w+\s+set\s
        | delete\s+from\s | (?:create|alter|drop)\s+(?:table|index|view|trigger|schema|sequence)\s
        | with\s+(?:recursive\s+)?\w+\s+as\s*\(
      ))""",
    re.VERBOSE | re.DOTALL,
)


def too_long(text: str) -> list[str]:
    """A file that nobody reads to its end."""
    lines = text.count("\n")
    return [f"{lines} lines, {MAX_FILE_LINES} at most: split it"] if lines > MAX_FILE_LINES else []


def long_functions(tree: ast.Module) -> list[str]:
    """Functions that do not fit on a screen."""
    return [
        f"line {node.lineno}: {node.name} has {length} lines, {MAX_FUNCTION_LINES} at most"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]


def taken_from_the_air(tree: ast.Module) -> list[str]:
    """Uses, called or not, of the machine's time, randomness and ids."""
    names = _imported(tree)
    if not {name.partition(".")[0] for name in names.values()} & _AIRY:
        return []
    seeded = {
        id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args
    } | {id(node) for part in _annotations(tree) for node in ast.walk(part)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            name = _dotted(node, names)
            if name == SEEDED and id(node) in seeded:
                continue
            if any(
                name == ban or (ban[-1] == "." and name.startswith(ban)) for ban in FROM_THE_AIR
            ):
                found.append(
                    f"line {node.lineno}: {name} is to be handed in (Clock, seeded Random)"
                )
    return found


def _imported(tree: ast.Module) -> dict[str, str]:
    """Local name -> the dotted name it stands for."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    """`dt.now` -> `datetime.datetime.now`; empty for what was not imported."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute) and (left := _dotted(node.value, names)):
        return f"{left}.{node.attr}"
    return ""


def _annotations(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns:
            yield node.returns
        elif isinstance(node, ast.Call) and _dotted(node.func, {"isinstance": "is"}) == "is":
            yield from node.args[1:]


def sql_in_python(tree: ast.Module) -> list[str]:
    """SQL in string literals; docstrings may talk about it, and transaction control is allowed."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return [
        f"line {node.lineno}: SQL belongs in a .sql file: {text.strip()[:40]!r}"
        for node in ast.walk(tree)
        if isinstance(node, ast.expr) and id(node) not in docstrings
        for text in [_literal(node)]
        if _SQL.search(text)
    ]


def _literal(node: ast.expr) -> str:
    """The text of a string, with an x for each value that an f-string puts in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_literal(part) or "x" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def no_docstring(tree: ast.Module) -> list[str]:
    """A module that does not say what it is for."""
    return [] if ast.get_docstring(tree) else ["the module has no docstring"]


def class_names(tree: ast.Module) -> list[str]:
    """The classes of a module, without the underscore of private ones."""
    return [node.name.lstrip("_") for node in tree.body if isinstance(node, ast.ClassDef)]


def protocol_methods(tree: ast.Module) -> set[str]:
    """The methods that the protocols of a module describe; implementations need no docstring."""
    return {
        method.name
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and any("Protocol" in ast.unparse(base) for base in node.bases)
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def undocumented_methods(tree: ast.Module, described: set[str]) -> list[str]:
    """Public methods of public classes that neither have a docstring nor implement a protocol."""
    return [
        f"line {method.lineno}: {node.name}.{method.name} has no docstring"
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        and not method.name.startswith("_")
        and method.name not in described
        and not ast.get_docstring(method)
        and not any(word in ast.unparse(each) for each in method.decorator_list for word in _TWINS)
    ]


def empty_docstrings(tree: ast.Module) -> list[str]:
    """Docstrings that only point elsewhere."""
    return [
        f"line {node.lineno}: a docstring says only {said!r}: leave it out"
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (said := ast.get_docstring(node) or "")
        and _POINTER.fullmatch(said)
    ]


def spec_ids(tree: ast.Module) -> list[str]:
    """The ids in the `pytest.mark.spec(...)` marks of a module."""
    return [
        argument.value
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
        else f"{ast.unparse(argument)} (not a literal)"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "spec"  # few are, and to unparse all would take seconds
        and ast.unparse(node.func).endswith("mark.spec")
        for argument in node.args
    ]


def registry_hosts(text: str) -> list[str]:
    """Package registries named by host: which one to use is each machine's own setting."""
    return _lines(_HOSTS, text, "names a package registry")


def machine_paths(text: str) -> list[str]:
    """Paths that exist on one machine."""
    return _lines(_MACHINE_PATH, text, "has a path of one machine")


def unfinished(text: str) -> list[str]:
    """Marks of unfinished work: finish it, or write an issue."""
    return _lines(_UNFINISHED, text, "is marked as unfinished")


def tabs(text: str) -> list[str]:
    """Tabs."""
    return _lines(re.compile("\t"), text, "has a tab")


def no_final_newline(text: str) -> list[str]:
    """A last line without an end."""
    return ["does not end with a newline"] if text and not text.endswith("\n") else []


def stray(path: str) -> list[str]:
    """A file that has no room in the house, by its path from the root."""
    top, name = path.split("/", maxsplit=1)[0], path.rsplit("/", 1)[-1]
    if top not in TOP_LEVEL:
        return [f"{top} is not among the top-level names in tools/tidy_rules.py"]
    if path not in WITHOUT_EXTENSION and name.rpartition(".")[2] not in EXTENSIONS:
        return ["its extension is not among those in tools/tidy_rules.py"]
    return []


def _lines(pattern: re.Pattern[str], text: str, what: str) -> list[str]:
    numbered: Iterable[tuple[int, str]] = enumerate(text.splitlines(), start=1)
    return [f"line {n} {what}: {line.strip()[:60]}" for n, line in numbered if pattern.search(line)]
