# Notifications: a Python function that the NIC's own thread calls when a descriptor completes.
#
# C gets a number instead of an object, because the owner may be closed at the moment the handler runs. The owner holds
# the functions. A table of all numbers refers to the owner weakly, so that a VI and a function that refers to it can be
# collected together.
#
# The handler takes the GIL. This cannot deadlock, because no thread waits for the NIC's thread while it holds the GIL.

cdef dict _notified = {}   # number -> weak reference to the Vi or CompletionQueue
cdef size_t _last_notification = 0


cdef size_t _new_notification(object owner, dict handlers, object handler) except 0:
    global _last_notification
    if not callable(handler):
        raise TypeError(f"handler must be a function that takes a Completion, got {handler!r}")
    _last_notification += 1
    handlers[_last_notification] = handler
    _notified[_last_notification] = weakref.ref(owner)
    return _last_notification


cdef void _drop_notification(dict handlers, size_t number) noexcept:
    handlers.pop(number, None)
    _notified.pop(number, None)


cdef void _cancel_notifications(dict handlers) noexcept:
    for number in list(handlers):
        _notified.pop(number, None)
    handlers.clear()


cdef object _owner_of(size_t number):
    reference = _notified.get(number)
    return None if reference is None else reference()


cdef object _call_notified(object owner, dict handlers, size_t number, object completion):
    """Call the function of a notification. Its exceptions are reported and do not stop other notifications."""
    _notified.pop(number, None)
    handler = handlers.pop(number, None)
    if handler is None:
        return
    try:
        handler(completion)
    except BaseException as error:
        if isinstance(error, _INTERRUPTS) and viakit_innermost != NULL:
            _keep_raised(error)   # The handler runs within a call of the program, which raises the exception.
        else:
            _report(error, handler)


cdef void _descriptor_done(size_t number, bint recv, VIP_DESCRIPTOR *c) noexcept with gil:
    cdef Vi vi
    try:
        vi = _owner_of(number)
        if vi is None:
            return   # Closed in the meantime. close() has taken the descriptor.
        descriptor = (vi._recvs if recv else vi._sends).taken(vi, VIP_SUCCESS, c)
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
        handle = cq._handle   # The program took the descriptor through its VI. Wait for the next one.
        _check(VipCQNotify(handle, <VIP_PVOID>number, _on_entry_done), "VipCQNotify")
    except BaseException as error:
        _report(error, None)


cdef void _on_entry_done(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_BOOLEAN recv) noexcept nogil:
    _entry_done(<size_t>context, vi, recv != 0)
