"""Attributes: values that a program attaches to communicators, datatypes and windows, and what Dup and Free do."""

from __future__ import annotations

import itertools
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from viakit.comm import error_codes
from viakit.comm.errors import error

__all__ = [
    "APPNUM",
    "HOST",
    "IO",
    "KEYVAL_INVALID",
    "LASTUSEDCODE",
    "TAG_UB",
    "UNIVERSE_SIZE",
    "WTIME_IS_GLOBAL",
    "HasAttributes",
    "predefined",
]

KEYVAL_INVALID = -1
HOST, IO, TAG_UB, WTIME_IS_GLOBAL, UNIVERSE_SIZE, LASTUSEDCODE, APPNUM = 10, 11, 2, 12, 13, 14, 15
TAG_MOST = 2**31 - 1
_FIRST = 1000  # of the program's keys


@dataclass
class _Key:
    kind: str
    copy: Callable[[Any, int, Any], Any] | bool | None
    delete: Callable[[Any, int, Any], Any] | None
    nopython: bool


_keys: dict[int, _Key] = {}
_next = itertools.count(_FIRST)


def predefined(keyval: int) -> Any:
    """Return the value of a predefined attribute of COMM_WORLD, or None."""
    if keyval == UNIVERSE_SIZE:
        size = os.environ.get("VIAKIT_UNIVERSE_SIZE", "")
        return int(size) if size.isdecimal() else None
    return {
        TAG_UB: TAG_MOST,
        HOST: -3,  # PROC_NULL: no rank is the host of the others
        IO: None,  # no MPI-IO
        WTIME_IS_GLOBAL: False,
        LASTUSEDCODE: error_codes.last_used(),
        APPNUM: int(os.environ.get("VIAKIT_APPNUM", "0")),
    }.get(keyval)


class HasAttributes:
    """The part of a communicator, datatype or window that has attributes."""

    _kind_of_keys: ClassVar[str] = ""

    def _attribute_values(self) -> dict[int, Any]:
        """Return the values by key. All handles of one object have the same dictionary."""
        raise NotImplementedError

    def _predefined_attribute(self, keyval: int) -> Any:
        """Return the value of an attribute that MPI defines, or None."""
        del keyval

    @classmethod
    def Create_keyval(
        cls,
        copy_fn: Callable[[Any, int, Any], Any] | bool | None = None,
        delete_fn: Callable[[Any, int, Any], Any] | None = None,
        nopython: bool = False,
    ) -> int:
        """Create a key for attributes.

        Parameters
        ----------
        copy_fn : callable, bool or None
            Called by Dup as ``copy_fn(object, keyval, value)``; its result is the value of the copy, or NotImplemented
            for none. True: the copy has the same value. False or None: the copy has no value.
        delete_fn : callable, optional
            Called as ``delete_fn(object, keyval, value)`` when the value is deleted, replaced, or its object freed.
        nopython : bool
            Whether values are integers (addresses) for code in C.

        Returns
        -------
        int
            The key.
        """
        keyval = next(_next)
        _keys[keyval] = _Key(cls._kind_of_keys, copy_fn, delete_fn, bool(nopython))
        return keyval

    @classmethod
    def Free_keyval(cls, keyval: int) -> int:
        """Free a key, and return KEYVAL_INVALID. Values that are set keep their functions.

        Raises
        ------
        Exception
            ERR_KEYVAL if *keyval* is no key of this class.
        """
        _key(keyval, cls._kind_of_keys)
        return KEYVAL_INVALID

    def Get_attr(self, keyval: int) -> Any:
        """Return the value of an attribute, or None.

        Raises
        ------
        Exception
            ERR_KEYVAL if *keyval* is no key of this class.
        """
        values = self._attribute_values()
        if 0 <= keyval < _FIRST:
            return self._predefined_attribute(keyval)
        _key(keyval, self._kind_of_keys)
        return values.get(keyval)

    def Set_attr(self, keyval: int, attrval: Any) -> None:
        """Set the value of an attribute.

        Raises
        ------
        Exception
            ERR_KEYVAL if *keyval* is no key of this class, or is predefined.
        """
        values, key = self._attribute_values(), _key(keyval, self._kind_of_keys)
        if key.nopython:
            attrval = int(attrval)
        if keyval in values:
            self.Delete_attr(keyval)
        values[keyval] = attrval

    def Delete_attr(self, keyval: int) -> None:
        """Delete the value of an attribute.

        Raises
        ------
        Exception
            ERR_KEYVAL if *keyval* is no key of this class. ERR_OTHER if the function of the key raises an exception.
        """
        values, key = self._attribute_values(), _key(keyval, self._kind_of_keys)
        if keyval in values:
            value = values.pop(keyval)
            if key.delete is not None:
                _call(key.delete, self, keyval, value)

    def _copy_attributes(self, made: Any) -> None:
        """Copy the values to a duplicate. Raises ERR_OTHER if a function of a key raises an exception."""
        for keyval, value in list(self._attribute_values().items()):
            key = _keys[keyval]
            if key.copy is True:
                made._attribute_values()[keyval] = value
            elif callable(key.copy):
                copied = _call(key.copy, self, keyval, value)
                if copied is not NotImplemented:
                    made._attribute_values()[keyval] = copied

    def _delete_attributes(self) -> None:
        """Delete all values, the last that was set first, because the object is about to be freed."""
        for keyval in reversed(list(self._attribute_values())):
            self.Delete_attr(keyval)


def _key(keyval: int, kind: str) -> _Key:
    key = _keys.get(keyval)
    if key is None or key.kind != kind:
        raise error("ERR_KEYVAL", f"{keyval} is no key for attributes of a {kind}; make one with Create_keyval")
    return key


def _call(function: Callable[[Any, int, Any], Any], target: Any, keyval: int, value: Any) -> Any:
    try:
        return function(target, keyval, value)
    except Exception as problem:
        traceback.print_exc(file=sys.stderr)
        raise error(
            "ERR_OTHER", f"the function of key {keyval} raised {type(problem).__name__}: {problem}"
        ) from problem
