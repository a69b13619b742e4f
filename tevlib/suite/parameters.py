"""The parameters cell of a notebook: what may be passed to it, and whether a value fits.

papermill itself lets unknown names through with a log line, turns tuples into strings and has no idea of types. Here a
notebook has exactly one cell tagged `parameters`, of annotated literals with a comment, and values are held against it.
"""

import ast
import json
import math
import types
import typing
from dataclasses import dataclass
from pathlib import Path

import nbformat
import numpy as np

from tevlib.suite.names import did_you_mean

_TYPES = {"str": str, "int": int, "float": float, "bool": bool, "list": list, "dict": dict, "None": None}


@dataclass(frozen=True)
class Parameter:
    """One declared parameter: its name, type (a class, a generic alias or a union), default and help text."""

    name: str
    kind: object
    default: object
    help: str


def declared(notebook: nbformat.NotebookNode, name: str) -> dict[str, Parameter]:
    """The parameters of `notebook` by name.

    Raises `ValueError` (with the notebook's `name`) unless exactly one cell is tagged `parameters` and holds nothing
    but lines `name: type = literal`.
    """
    cells = [c for c in notebook.cells if c.cell_type == "code" and "parameters" in c.metadata.get("tags", [])]
    if len(cells) != 1:
        raise ValueError(f"{name} must have exactly one code cell tagged 'parameters', it has {len(cells)}")
    lines = cells[0].source.splitlines()
    found = {}
    for statement in ast.parse(cells[0].source).body:
        line = lines[statement.lineno - 1].strip()
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            raise ValueError(f"{name}, parameters cell: `name: type = literal` is needed, got {line!r}")
        try:
            default = ast.literal_eval(statement.value)
        except (ValueError, TypeError):
            raise ValueError(f"{name}, parameters cell: the default is not a literal in {line!r}") from None
        comment = lines[statement.end_lineno - 1][statement.end_col_offset :].strip().lstrip("# ")
        parameter = Parameter(statement.target.id, _kind(statement.annotation, line), default, comment)
        found[parameter.name] = parameter
    return found


def checked(parameters: dict, known: dict[str, Parameter], name: str) -> dict:
    """`parameters` as JSON-ready values; raises `ValueError` for an unknown name and for a value of the wrong type.

    numpy scalars become Python's, tuples lists, paths strings, an int where a float is declared a float. Nothing else
    is converted: the string "0.9" is no number.
    """
    for key in parameters:
        if key not in known:
            raise ValueError(f"{name} has no parameter {key!r}{did_you_mean(str(key), known)}")
    return {key: _fitted(key, plain(key, value), known[key].kind) for key, value in parameters.items()}


def from_text(text: str, parameter: Parameter) -> object:
    """The value that `text` (from a command line) means for a declared parameter: a string stays one, else JSON/Python.

    Where a number or a string may stand (`int | str`), text that is such a number is one. Raises `ValueError` naming
    the parameter where the text does not fit its type.
    """
    if parameter.kind is str:
        return text
    words = {"true": True, "false": False, "none": None, "null": None, "nan": math.nan, "inf": math.inf}
    try:
        value = words[text.lower()] if text.lower() in words else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        if _fits(text, parameter.kind):
            return text
        raise ValueError(f"parameter {parameter.name!r} must be {_name(parameter.kind)}, got {text!r}") from None
    if _fits(text, parameter.kind) and not (type(value) in (int, float) and _fits(value, parameter.kind)):
        return text
    return _fitted(parameter.name, plain(parameter.name, value), parameter.kind)


def plain(key: str, value: object) -> object:
    """`value` in JSON's own types, nested ones too; raises `ValueError` naming the parameter for all others."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        return [plain(key, item) for item in value]
    if isinstance(value, dict):
        if bad := [inner for inner in value if not isinstance(inner, str)]:
            raise ValueError(f"parameter {key!r}: keys must be strings, got {bad[0]!r}")
        return {inner: plain(key, item) for inner, item in value.items()}
    if value is None or type(value) in (str, int, float, bool):
        return value
    raise ValueError(f"parameter {key!r}: {type(value).__name__} is not a literal, a list or a dict of them: {value!r}")


def _fitted(key: str, value: object, kind: object) -> object:
    if type(value) is int and not _fits(value, kind) and _fits(float(value), kind):
        return float(value)
    if not _fits(value, kind):
        raise ValueError(f"parameter {key!r} must be {_name(kind)}, got {json.dumps(value)} ({type(value).__name__})")
    return value


def _fits(value: object, kind: object) -> bool:
    """Whether `value` has exactly the type `kind`: True is no int, 1 no float."""
    if kind is None or kind is types.NoneType:
        return value is None
    if isinstance(kind, types.UnionType):
        return any(_fits(value, part) for part in typing.get_args(kind))
    if typing.get_origin(kind) is list:
        (item,) = typing.get_args(kind)
        return type(value) is list and all(_fits(v, item) or (type(v) is int and _fits(float(v), item)) for v in value)
    return type(value) is kind


def _name(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)


def _kind(annotation: ast.expr, line: str) -> object:
    """The type that an annotation of the parameters cell means: a name of `_TYPES`, `X | Y` or `list[X]`."""
    if isinstance(annotation, ast.Constant) and annotation.value is None:
        return None
    if isinstance(annotation, ast.Name) and annotation.id in _TYPES:
        return _TYPES[annotation.id]
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        return _kind(annotation.left, line) | _kind(annotation.right, line)
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "list":
        return list[_kind(annotation.slice, line)]
    raise ValueError(f"parameters cell: {ast.unparse(annotation)} is no type that a parameter can have, in {line!r}")
