# Notifications: a Python function that is called when something completes, on the NIC's own thread.
#
# C is given a number, not an object: what it stands for may be gone when the handler runs, because the owner was closed
# in that moment. The owner holds the functions, and a table of all of them knows the owner weakly, so that a VI and a
# function that refers to it can be collected together.
#
# The handler takes the GIL. That cannot lock up: no thread waits for the NIC's thread with the GIL in its hands.

cdef dict _notified = {}   # number -> weak reference to the Vi or CompletionQueue
cdef size_t _last_notification = 0


cdef size_t _new_notification(object owner, dict handlers, object handler) except 0:
    global _last_notification
    if not callable(handler):
        raise TypeError(f"a notification calls a function that takes a Completion; not {handler!r}")
    _last_notification += 1
    handlers[_last_notification] = handler
    _notified[_last_notification] = weakref.ref(owner)
    return _last_notification


cdef void _cancel_notifications(dict handlers) noexcept:
    for number in list(handlers):
        _notified.pop(number, None)
    handlers.clear()


cdef object _owner_of(size_t number):
    reference = _notified.get(number)
    return None if reference is None else reference()


cdef object _call_notified(object owner, dict handlers, size_t number, object completion):
    """Call the function that belongs to the number; what it raises is reported, and stops nothing."""
    _notified.pop(number, None)
    handler = handlers.pop(number, None)
    if handler is None:
        return
    try:
        handler(completion)
    except BaseException as error:
        if isinstance(error, _INTERRUPTS) and viakit_innermost != NULL:
            _keep_raised(error)   # in the middle of a call of the program's: that raises it
        else:
            _report(error, handler)


cdef void _descriptor_done(size_t number, bint recv, VIP_DESCRIPTOR *c) noexcept with gil:
    cdef Vi vi
    try:
        vi = _owner_of(number)
        if vi is None:
            return   # closed meanwhile; close() has taken the descriptor back
        descriptor = vi._taken(recv, VIP_SUCCESS, c)
        _call_notified(vi, vi._handlers, number, _Completion(vi, _QUEUE_RECV if recv else _QUEUE_SEND, descriptor))
    except BaseException as error:
        _report(error, None)


cdef void _on_send_done(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *c) noexcept nogil:
    _descriptor_done(<size_t>context, False, c)


cdef void _on_recv_done(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *c) noexcept nogil:
    _descriptor_done(<size_t>context, True, c)


cdef void _entry_done(size_t number, VIP_VI_HANDLE vi, bint recv) noexcept with gil:
    cdef CompletionQueue cq
    cdef VIP_CQ_HANDLE handle
    try:
        cq = _owner_of(number)
        if cq is None or cq._handle == NULL:
            return
        completion = cq._completion(vi, recv)
        if completion is not None:
            _call_notified(cq, cq._handlers, number, completion)
            return
        handle = cq._handle   # somebody took the descriptor through its VI: wait for the next one
        _check(VipCQNotify(handle, <VIP_PVOID>number, _on_entry_done), "VipCQNotify")
    except BaseException as error:
        _report(error, None)


cdef void _on_entry_done(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_BOOLEAN recv) noexcept nogil:
    _entry_done(<size_t>context, vi, recv != 0)
