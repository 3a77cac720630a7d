"""Error codes: the predefined classes of :mod:`viakit.comm.errors`, and those that the program adds."""

from __future__ import annotations

from collections.abc import Callable

__all__ = [
    "Add_error_class",
    "Add_error_code",
    "Add_error_string",
    "Get_error_class",
    "Get_error_string",
    "Remove_error_class",
    "Remove_error_code",
    "Remove_error_string",
    "class_of",
    "last_used",
    "set_predefined",
    "text_of",
]

_names: dict[int, str] = {}
_texts: dict[int, str] = {}
_classes: dict[int, int] = {}  # the class of each added code; an added class is a code of its own class
_strings: dict[int, str] = {}  # of added classes and codes
_refusal: list[Callable[[str, str], BaseException]] = []  # errors.error, which uses this module


def set_predefined(classes: dict[int, tuple[str, str]], refusal: Callable[[str, str], BaseException]) -> None:
    """Set the names and texts of the predefined classes, and the function that makes exceptions."""
    for number, (name, text) in classes.items():
        _names[number], _texts[number] = f"MPI_{name}", text
    _refusal[:] = [refusal]


def class_of(code: int) -> int:
    """Return the class of an error code; ERR_UNKNOWN if it is not known."""
    if code in _names:
        return code
    return _classes.get(code, next(number for number, name in _names.items() if name == "MPI_ERR_UNKNOWN"))


def text_of(code: int) -> str:
    """Return the text of an error code."""
    if code in _classes:
        return _strings.get(code, "")
    known = class_of(code)
    return f"{_names[known]}: {_texts[known]}"


def last_used() -> int:
    """Return the largest error code in use."""
    return max((max(_names), *_classes))


def _require_added(code: int, what: str) -> None:
    if code not in _classes:
        raise _refusal[0](
            "ERR_ARG", f"{what}: the program has not added error code {code}; codes come from Add_error_class or _code"
        )


def Get_error_class(errorcode: int) -> int:
    """Return the error class of an error code."""
    return class_of(int(errorcode))


def Get_error_string(errorcode: int) -> str:
    """Return the text of an error code."""
    return text_of(int(errorcode))


def Add_error_class() -> int:
    """Add an error class to those of MPI, and return it. Its text is empty until `Add_error_string` sets it."""
    number = last_used() + 1
    _classes[number] = number
    return number


def Remove_error_class(errorclass: int) -> None:
    """Remove an error class that the program has added.

    Raises
    ------
    Exception
        ERR_ARG if the program has not added it, or if it still has codes or a text.
    """
    _require_added(errorclass, "Remove_error_class")
    codes = [code for code, its in _classes.items() if its == errorclass != code]
    if _classes[errorclass] != errorclass or codes or errorclass in _strings:
        raise _refusal[0](
            "ERR_ARG",
            f"Remove_error_class: {errorclass} is no class, or has codes {codes} or a text; remove these first",
        )
    del _classes[errorclass]


def Add_error_code(errorclass: int) -> int:
    """Add an error code to an error class, and return it.

    Raises
    ------
    Exception
        ERR_ARG if the class does not exist.
    """
    if errorclass not in _names and _classes.get(errorclass) != errorclass:
        raise _refusal[0]("ERR_ARG", f"Add_error_code: {errorclass} is no error class; make one with Add_error_class")
    number = last_used() + 1
    _classes[number] = errorclass
    return number


def Remove_error_code(errorcode: int) -> None:
    """Remove an error code that the program has added.

    Raises
    ------
    Exception
        ERR_ARG if the program has not added it, or if it still has a text.
    """
    _require_added(errorcode, "Remove_error_code")
    if _classes[errorcode] == errorcode or errorcode in _strings:
        raise _refusal[0]("ERR_ARG", f"Remove_error_code: {errorcode} is a class or has a text; remove the text first")
    del _classes[errorcode]


def Add_error_string(errorcode: int, string: str) -> None:
    """Set the text of an error class or code that the program has added."""
    _require_added(errorcode, "Add_error_string")
    _strings[errorcode] = string


def Remove_error_string(errorcode: int) -> None:
    """Remove the text of an error class or code that the program has added.

    Raises
    ------
    Exception
        ERR_ARG if the program has not added the code, or if it has no text.
    """
    _require_added(errorcode, "Remove_error_string")
    if _strings.pop(errorcode, None) is None:
        raise _refusal[0]("ERR_ARG", f"Remove_error_string: error code {errorcode} has no text")
