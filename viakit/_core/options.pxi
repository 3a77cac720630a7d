# The options of a NIC: conversion of keyword arguments to the C struct.

_OPTIONS = ("form", "mtu", "ring_slots", "window", "rto_us", "max_retries", "ack_delay_us", "keepalive_ms", "spin_us",
            "first_psn", "no_thread", "no_cma", "no_map", "retransmission", "checksum", "takeover_us")


cdef uint32_t _option_u32(str name, object value) except? 0:
    """Return a whole number of 32 bits; None is 0, the default."""
    return 0 if value is None else <uint32_t>_whole(name, value, UINT32_MAX)


cdef int _option_member(str name, object value, object enumeration) except -1:
    """Return the number of an enumeration's member, which is given by name or number; None is 0, the default."""
    cdef dict members = {member.name.lower(): int(member) for member in enumeration}
    if value is None:
        return 0
    number = members.get(value.lower(), -1) if isinstance(value, str) else int(value)
    if number not in members.values():
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(members)}")
    return number


cdef int _fill_options(viakit_nic_options *options, dict given) except -1:
    cdef object value
    for name in given:
        if name not in _OPTIONS:
            raise TypeError(f"a Nic has no option {name!r}; the options are {', '.join(_OPTIONS)}")
    memset(options, 0, sizeof(viakit_nic_options))
    options.size = sizeof(viakit_nic_options)
    options.form = <viakit_form>_option_member("form", given.get("form"), _types.Form)
    options.mtu = _option_u32("mtu", given.get("mtu"))
    options.ring_slots = _option_u32("ring_slots", given.get("ring_slots"))
    options.window = _option_u32("window", given.get("window"))
    options.rto_us = _option_u32("rto_us", given.get("rto_us"))
    options.max_retries = _option_u32("max_retries", given.get("max_retries"))
    options.ack_delay_us = _option_u32("ack_delay_us", given.get("ack_delay_us"))
    options.keepalive_ms = _option_u32("keepalive_ms", given.get("keepalive_ms"))
    value = given.get("spin_us")
    if value is not None:
        options.spin_us = -1 if value == -1 else <int>_whole("spin_us", value, 0x7fffffff)
    options.first_psn = _option_u32("first_psn", given.get("first_psn"))
    options.no_thread = bool(given.get("no_thread"))
    options.no_cma = bool(given.get("no_cma"))
    options.no_map = bool(given.get("no_map"))
    options.retransmission = <viakit_retransmission>_option_member("retransmission", given.get("retransmission"),
                                                                   _types.Retransmission)
    options.checksum = <viakit_checksum>_option_member("checksum", given.get("checksum"), _types.Checksum)
    options.takeover_us = _option_u32("takeover_us", given.get("takeover_us"))
    return 0
