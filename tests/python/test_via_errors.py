"""Codes and exceptions: one complete table, and each exception is also a common built-in."""

from __future__ import annotations

import builtins
import errno
import pickle

import pytest

from viakit import _core, errors, via
from viakit.base import types as _types


def test_every_code_of_the_c_library_has_a_member_and_an_exception():
    codes = _core.return_codes()
    assert {code: name.removeprefix("VIP_") for code, (name, _) in codes.items()} == {
        int(member): member.name for member in _types.Return
    }
    assert set(errors.EXCEPTIONS) == set(_types.Return) - {_types.Return.SUCCESS, _types.Return.NOT_DONE}
    assert all(text for _, text in codes.values())


def test_every_asynchronous_error_has_a_member_and_a_text():
    codes = _core.error_codes()
    assert {code: name.removeprefix("VIP_ERROR_") for code, (name, _) in codes.items()} == {
        int(member): member.name for member in via.ErrorCode
    }
    assert all(text for _, text in codes.values())


@pytest.mark.parametrize("code", list(errors.EXCEPTIONS))
def test_exceptions_are_built_ins_too(code):
    error = errors.from_code(code, "VipSomething", "it went wrong")
    assert isinstance(error, errors.ViaError)
    assert error.code == code
    assert str(error) == "it went wrong"
    standard = {base for base in type(error).__mro__ if base.__module__ == "builtins"}
    standard -= {Exception, BaseException, object}
    assert standard, "no built-in among its bases"
    assert all(hasattr(builtins, base.__name__) for base in standard)


@pytest.mark.parametrize(
    ("code", "standard"),
    [
        (_types.Return.INVALID_PARAMETER, ValueError),
        (_types.Return.ERROR_RESOURCE, MemoryError),
        (_types.Return.TIMEOUT, TimeoutError),
        (_types.Return.NO_MATCH, ConnectionRefusedError),
        (_types.Return.REJECT, ConnectionRefusedError),
        (_types.Return.NOT_REACHABLE, ConnectionError),
        (_types.Return.ERROR_NOT_SUPPORTED, NotImplementedError),
    ],
)
def test_built_in(code, standard):
    assert isinstance(errors.from_code(code, "", "text"), standard)


def test_refused_by_the_kernel():
    error = errors.from_code(_types.Return.ERROR_RESOURCE, "VipOpenNic", "text", errno.EPERM)
    assert isinstance(error, PermissionError)
    assert error.errno == errno.EPERM
    assert str(error) == "text"


@pytest.mark.parametrize("code", list(errors.EXCEPTIONS))
def test_exceptions_travel(code):
    error = pickle.loads(pickle.dumps(errors.from_code(code, "VipSomething", "text")))
    assert type(error) is errors.EXCEPTIONS[code]
    assert (error.code, str(error)) == (code, "text")


def test_completion_errors_say_what_to_do():
    assert set(errors.COMPLETION_TEXTS) == set(via.Status) - {via.Status.DONE, via.Status.IMMEDIATE}
    error = errors.CompletionError.from_status(0x1 | 0x8 | 0x100, 0, object(), object())
    assert "LENGTH_ERROR | REMOTE_DESC_ERROR" in str(error)
    assert error.status & via.Status.LENGTH_ERROR
    assert error.operation_kind is via.Operation.SEND
    travelled = pickle.loads(pickle.dumps(error))
    assert travelled.status == error.status
    assert travelled.descriptor is None
    assert str(travelled) == str(error)


def test_every_error_class_is_listed_and_documented():
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.ViaError):
            assert name in errors.__all__
            assert value.__doc__
