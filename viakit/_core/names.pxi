# Names of hosts, and the discovery of hosts: the implementation of Nic.resolve, name_of and discover.

cdef int _start_names(Nic nic) except -1:
    nic._use()
    if not nic._named:
        _check(VipNSInit(nic._handle, NULL), "VipNSInit")
        nic._named = True
    return 0


cdef object _resolve(Nic nic, object name, object discriminator):
    cdef NetAddress buffer
    cdef bytes c_name = name.encode()
    cdef char *p_name = c_name
    cdef VIP_RETURN code
    _start_names(nic)
    memset(&buffer, 0, sizeof(buffer))
    buffer.net.HostAddressLen = 6
    with nogil:
        code = VipNSGetHostByName(nic._handle, p_name, &buffer.net, 0)
    _check(code, "VipNSGetHostByName")
    return _address_of(&buffer) / discriminator


cdef object _name_of(Nic nic, object address):
    cdef NetAddress buffer
    cdef char name[256]
    cdef VIP_ULONG length = sizeof(name)
    cdef VIP_RETURN code
    _start_names(nic)
    _fill_address(&buffer, _Address(address.host))
    memset(name, 0, sizeof(name))
    with nogil:
        code = VipNSGetHostByAddr(nic._handle, &buffer.net, name, &length)
    _check(code, "VipNSGetHostByAddr")
    return _text(name)


cdef list _discover(Nic nic):
    cdef VIP_AUTODISCOVERY_LIST found
    cdef VIP_RETURN code
    cdef size_t i
    cdef char *entry
    nic._use()
    memset(&found, 0, sizeof(found))
    with nogil:
        code = VipQuerySystemManagementInfo(nic._handle, VIP_SMI_AUTODISCOVERY, &found)
    _check(code, "VipQuerySystemManagementInfo")
    result = []
    for i in range(found.NumAdAddrs):
        entry = <char *>found.ADAddrArray + i * 10   # two lengths, then the six bytes of the address
        result.append(_Address(entry[4:10]))
    return result
