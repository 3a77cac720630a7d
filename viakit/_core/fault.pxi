# Faults: conversion between the dataclass of viakit/base/faults.py and the C struct. C checks the ranges of numbers.

from viakit.base import faults as _faults_module

import sys as _sys

_faults_module._compiled = _sys.modules[__name__]
cdef object _Faults = _faults_module.Faults
cdef object _FaultRule = _faults_module.FaultRule
cdef tuple _VERDICTS = _faults_module._VERDICTS

frame_kinds = {_text(viakit_frame_kind_name(i)).lower(): i
               for i in range(32) if viakit_frame_kind_name(i) != NULL}
cdef dict _KIND_NAMES = {number: name for name, number in frame_kinds.items()}


cdef int _kind_of(object name) except -1:
    number = frame_kinds.get(name.lower()) if isinstance(name, str) else None
    if number is None:
        raise ValueError(f"unknown kind of frame {name!r}: expected one of {', '.join(frame_kinds)}")
    return number


cdef object _number(str name, object value, object most):
    if not 0 <= value <= most:
        raise ValueError(f"{name}={value!r}: expected a number from 0 to {most}")
    return value


cdef double _us(str name, object seconds) except? -1:
    """Convert seconds to microseconds, rounded to a nanosecond: 0.0003 s is 300 us and not 299.99999999999994."""
    if not 0 <= seconds < 1e9:
        raise ValueError(f"{name}={seconds!r}: expected a number of seconds, 0 or more")
    return round(seconds * 1e9) / 1e3


cdef int _fill_faults(viakit_faults *to, object faults) except -1:
    cdef int i
    cdef object most = 2**64 - 1
    if isinstance(faults, str):
        faults = parse_faults(faults)
    elif not isinstance(faults, _Faults):
        raise TypeError(f"faults must be via.Faults, text such as 'loss=0.05,seed=7', or None; got {faults!r}")
    memset(to, 0, sizeof(viakit_faults))
    to.size = sizeof(viakit_faults)
    to.seed = _number("seed", faults.seed, most)
    to.loss, to.duplicate, to.reorder, to.corrupt = faults.loss, faults.duplicate, faults.reorder, faults.corrupt
    to.reorder_distance = _number("reorder_distance", faults.reorder_distance, 64)
    to.corrupt_bits = _number("corrupt_bits", faults.corrupt_bits, 32)
    for name in (faults.kinds,) if isinstance(faults.kinds, str) else faults.kinds:
        to.kinds |= <uint32_t>1 << _kind_of(name)
    to.delay_us = _us("delay_s", faults.delay_s)
    to.jitter_us = _us("jitter_s", faults.jitter_s)
    to.stall_us = _us("stall_s", faults.stall_s)
    to.stall_every_us = _us("stall_every_s", faults.stall_every_s)
    to.partition_us = VIAKIT_FOR_EVER if faults.for_ever else _us("partition_s", faults.partition_s)
    to.partition_after_us = _us("partition_after_s", faults.partition_after_s)
    to.partition_frames = _number("partition_frames", faults.partition_frames, most)
    to.partition_after_frames = _number("partition_after_frames", faults.partition_after_frames, most)
    if len(faults.rules) > VIAKIT_MAX_FAULT_RULES:
        raise ValueError(f"{len(faults.rules)} rules are too many: expected at most {VIAKIT_MAX_FAULT_RULES}")
    to.n_rules = <uint32_t>len(faults.rules)
    for i, rule in enumerate(faults.rules):
        to.rules[i].verdict = <viakit_verdict>(<int>_VERDICTS.index(rule.what) + 1)
        to.rules[i].kind = 0 if rule.kind is None else _kind_of(rule.kind)
        to.rules[i].first = _number("first", rule.first, most)
        to.rules[i].last = most if rule.last is None else _number("last", rule.last, most)
    return 0


cdef object _faults_from(const viakit_faults *f):
    cdef uint32_t i
    rules = []
    for i in range(f.n_rules):
        last = f.rules[i].last
        rules.append(_FaultRule(_VERDICTS[<int>f.rules[i].verdict - 1], f.rules[i].first,
                                None if last == 2**64 - 1 else last, _KIND_NAMES.get(f.rules[i].kind)))
    return _Faults(
        f.loss, f.duplicate, f.reorder, f.corrupt, f.reorder_distance or 3, f.corrupt_bits or 1,
        tuple([name for name, number in frame_kinds.items() if f.kinds >> number & 1]),
        f.delay_us / 1e6, f.jitter_us / 1e6, f.stall_us / 1e6, f.stall_every_us / 1e6,
        float("inf") if f.partition_us < 0 else f.partition_us / 1e6, f.partition_after_us / 1e6,
        f.partition_frames, f.partition_after_frames, tuple(rules), f.seed,
    )


def parse_faults(str text not None):
    """Return the :class:`viakit.via.Faults` for a line of text.

    Raises
    ------
    ValueError
        If the text has an invalid item; the message names it and what is accepted.
    """
    cdef viakit_faults f
    cdef bytes encoded = text.encode("utf-8", "surrogatepass")
    f.size = sizeof(f)
    if b"\0" in encoded:
        raise ValueError(f"faults: {text!r} contains a zero character; remove it")
    _check(viakit_parse_faults(encoded, &f), "viakit_parse_faults")
    return _faults_from(&f)


def format_faults(faults):
    """Return the line of text for :class:`viakit.via.Faults`; ``""`` without faults."""
    cdef viakit_faults f
    cdef char text[2048]
    _fill_faults(&f, faults)
    _check(viakit_format_faults(&f, text, sizeof(text)), "viakit_format_faults")
    return _text(text)


def fault_of(faults, index, str kind not None, index_of_kind):
    """Return the fate of a frame as bits 1 << viakit_verdict; see :meth:`viakit.via.Faults.fate`."""
    cdef viakit_faults f
    cdef object most = 2**64 - 1
    _fill_faults(&f, faults)
    return viakit_fault_of(&f, _number("index", index, most), _kind_of(kind),
                           _number("index_of_kind", index_of_kind, most))
