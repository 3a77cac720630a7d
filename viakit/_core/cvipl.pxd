# cython: language_level=3
"""The C headers as Cython sees them: vipl.h and viakit.h, one nogil block each, names and order as there.

Nothing here adds anything; what these calls mean is written in the headers.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "vipl.h" nogil:
    ctypedef void *VIP_PVOID
    ctypedef int VIP_BOOLEAN
    ctypedef char VIP_CHAR
    ctypedef unsigned short VIP_USHORT
    ctypedef unsigned long VIP_ULONG
    ctypedef uint8_t VIP_UINT8
    ctypedef uint16_t VIP_UINT16
    ctypedef uint32_t VIP_UINT32
    ctypedef uint64_t VIP_UINT64

    ctypedef VIP_PVOID VIP_QOS
    ctypedef VIP_PVOID VIP_NIC_HANDLE
    ctypedef VIP_PVOID VIP_VI_HANDLE
    ctypedef VIP_PVOID VIP_CQ_HANDLE
    ctypedef VIP_PVOID VIP_PROTECTION_HANDLE
    ctypedef VIP_PVOID VIP_CONN_HANDLE
    ctypedef VIP_UINT32 VIP_MEM_HANDLE

    const VIP_ULONG VIP_INFINITE
    enum:
        VIP_TRUE
        VIP_FALSE
        VIP_DESCRIPTOR_ALIGNMENT

    # ---------------------------------------------------------------- descriptors

    ctypedef union VIP_PVOID64:
        VIP_UINT64 AddressBits
        VIP_PVOID Address

    ctypedef struct VIP_CONTROL_SEGMENT:
        VIP_PVOID64 Next
        VIP_MEM_HANDLE NextHandle
        VIP_UINT16 SegCount
        VIP_UINT16 Control
        VIP_UINT32 Reserved
        VIP_UINT32 ImmediateData
        VIP_UINT32 Length
        VIP_UINT32 Status

    ctypedef struct VIP_ADDRESS_SEGMENT:
        VIP_PVOID64 Data
        VIP_MEM_HANDLE Handle
        VIP_UINT32 Reserved

    ctypedef struct VIP_DATA_SEGMENT:
        VIP_PVOID64 Data
        VIP_MEM_HANDLE Handle
        VIP_UINT32 Length

    ctypedef union VIP_DESCRIPTOR_SEGMENT:
        VIP_ADDRESS_SEGMENT Remote
        VIP_DATA_SEGMENT Local

    ctypedef struct VIP_DESCRIPTOR:
        VIP_CONTROL_SEGMENT CS
        VIP_DESCRIPTOR_SEGMENT DS[2]

    enum:
        VIP_CONTROL_OP_SENDRECV
        VIP_CONTROL_OP_RDMAWRITE
        VIP_CONTROL_OP_RDMAREAD
        VIP_CONTROL_OP_MASK
        VIP_CONTROL_IMMEDIATE
        VIP_CONTROL_QFENCE
        VIP_STATUS_DONE
        VIP_STATUS_FORMAT_ERROR
        VIP_STATUS_PROTECTION_ERROR
        VIP_STATUS_LENGTH_ERROR
        VIP_STATUS_PARTIAL_ERROR
        VIP_STATUS_DESC_FLUSHED_ERROR
        VIP_STATUS_TRANSPORT_ERROR
        VIP_STATUS_RDMA_PROT_ERROR
        VIP_STATUS_REMOTE_DESC_ERROR
        VIP_STATUS_ERROR_MASK
        VIP_STATUS_OP_SEND
        VIP_STATUS_OP_RECEIVE
        VIP_STATUS_OP_RDMA_WRITE
        VIP_STATUS_OP_REMOTE_RDMA_WRITE
        VIP_STATUS_OP_RDMA_READ
        VIP_STATUS_OP_MASK
        VIP_STATUS_IMMEDIATE

    # ---------------------------------------------------------------- attributes and errors

    ctypedef struct VIP_NET_ADDRESS:
        VIP_UINT16 HostAddressLen
        VIP_UINT16 DiscriminatorLen
        VIP_UINT8 HostAddress[1]

    ctypedef VIP_USHORT VIP_RELIABILITY_LEVEL

    ctypedef struct VIP_NIC_ATTRIBUTES:
        VIP_CHAR Name[64]
        VIP_ULONG HardwareVersion
        VIP_ULONG ProviderVersion
        VIP_UINT16 NicAddressLen
        const VIP_UINT8 *LocalNicAddress
        VIP_BOOLEAN ThreadSafe
        VIP_UINT16 MaxDiscriminatorLen
        VIP_ULONG MaxRegisterBytes
        VIP_ULONG MaxRegisterRegions
        VIP_ULONG MaxRegisterBlockBytes
        VIP_ULONG MaxVI
        VIP_ULONG MaxDescriptorsPerQueue
        VIP_ULONG MaxSegmentsPerDesc
        VIP_ULONG MaxCQ
        VIP_ULONG MaxCQEntries
        VIP_ULONG MaxTransferSize
        VIP_ULONG NativeMTU
        VIP_ULONG MaxPtags
        VIP_RELIABILITY_LEVEL ReliabilityLevelSupport
        VIP_RELIABILITY_LEVEL RDMAReadSupport

    ctypedef struct VIP_VI_ATTRIBUTES:
        VIP_RELIABILITY_LEVEL ReliabilityLevel
        VIP_ULONG MaxTransferSize
        VIP_QOS QoS
        VIP_PROTECTION_HANDLE Ptag
        VIP_BOOLEAN EnableRdmaWrite
        VIP_BOOLEAN EnableRdmaRead

    ctypedef struct VIP_MEM_ATTRIBUTES:
        VIP_PROTECTION_HANDLE Ptag
        VIP_BOOLEAN EnableRdmaWrite
        VIP_BOOLEAN EnableRdmaRead

    ctypedef enum VIP_VI_STATE:
        VIP_STATE_IDLE
        VIP_STATE_CONNECTED
        VIP_STATE_CONNECT_PENDING
        VIP_STATE_ERROR

    ctypedef enum VIP_RESOURCE_CODE:
        VIP_RESOURCE_NIC
        VIP_RESOURCE_VI
        VIP_RESOURCE_CQ
        VIP_RESOURCE_DESCRIPTOR

    ctypedef enum VIP_ERROR_CODE:
        VIP_ERROR_POST_DESC
        VIP_ERROR_CONN_LOST
        VIP_ERROR_RECVQ_EMPTY
        VIP_ERROR_VI_OVERRUN
        VIP_ERROR_RDMAW_PROT
        VIP_ERROR_RDMAW_DATA
        VIP_ERROR_RDMAW_ABORT
        VIP_ERROR_RDMAR_PROT
        VIP_ERROR_COMP_PROT
        VIP_ERROR_RDMA_TRANSPORT
        VIP_ERROR_CATASTROPHIC

    ctypedef struct VIP_ERROR_DESCRIPTOR:
        VIP_NIC_HANDLE NicHandle
        VIP_VI_HANDLE ViHandle
        VIP_CQ_HANDLE CQHandle
        VIP_DESCRIPTOR *DescriptorPtr
        VIP_ULONG OpCode
        VIP_RESOURCE_CODE ResourceCode
        VIP_ERROR_CODE ErrorCode

    ctypedef enum VIP_RETURN:
        VIP_SUCCESS
        VIP_NOT_DONE
        VIP_INVALID_PARAMETER
        VIP_ERROR_RESOURCE
        VIP_TIMEOUT
        VIP_REJECT
        VIP_INVALID_RELIABILITY_LEVEL
        VIP_INVALID_MTU
        VIP_INVALID_QOS
        VIP_INVALID_PTAG
        VIP_INVALID_RDMAREAD
        VIP_DESCRIPTOR_ERROR
        VIP_INVALID_STATE
        VIP_ERROR_NAMESERVICE
        VIP_NO_MATCH
        VIP_NOT_REACHABLE
        VIP_ERROR_NOT_SUPPORTED

    ctypedef void (*VIP_ERROR_HANDLER)(VIP_PVOID Context, VIP_ERROR_DESCRIPTOR *ErrorDesc) noexcept nogil
    ctypedef void (*VIP_DESC_HANDLER)(VIP_PVOID Context, VIP_NIC_HANDLE NicHandle, VIP_VI_HANDLE ViHandle,
                                      VIP_DESCRIPTOR *Descriptor) noexcept nogil
    ctypedef void (*VIP_CQ_HANDLER)(VIP_PVOID Context, VIP_NIC_HANDLE NicHandle, VIP_VI_HANDLE ViHandle,
                                    VIP_BOOLEAN RecvQueue) noexcept nogil
    ctypedef struct VIP_AUTODISCOVERY_LIST:
        VIP_ULONG NumberOfHops
        VIP_NET_ADDRESS *ADAddrArray
        VIP_ULONG NumAdAddrs
    VIP_ULONG VIP_SMI_AUTODISCOVERY

    # ---------------------------------------------------------------- calls

    VIP_RETURN VipOpenNic(const VIP_CHAR *DeviceName, VIP_NIC_HANDLE *NicHandle)
    VIP_RETURN VipCloseNic(VIP_NIC_HANDLE NicHandle)
    VIP_RETURN VipQueryNic(VIP_NIC_HANDLE NicHandle, VIP_NIC_ATTRIBUTES *Attributes)
    VIP_RETURN VipQuerySystemManagementInfo(VIP_NIC_HANDLE NicHandle, VIP_ULONG InfoType, VIP_PVOID SysManInfo)
    VIP_RETURN VipErrorCallback(VIP_NIC_HANDLE NicHandle, VIP_PVOID Context, VIP_ERROR_HANDLER Handler)

    VIP_RETURN VipCreatePtag(VIP_NIC_HANDLE NicHandle, VIP_PROTECTION_HANDLE *Ptag)
    VIP_RETURN VipDestroyPtag(VIP_NIC_HANDLE NicHandle, VIP_PROTECTION_HANDLE Ptag)
    VIP_RETURN VipRegisterMem(VIP_NIC_HANDLE NicHandle, VIP_PVOID VirtualAddress, VIP_ULONG Length,
                              VIP_MEM_ATTRIBUTES *MemAttribs, VIP_MEM_HANDLE *MemoryHandle)
    VIP_RETURN VipDeregisterMem(VIP_NIC_HANDLE NicHandle, VIP_PVOID VirtualAddress, VIP_MEM_HANDLE MemoryHandle)
    VIP_RETURN VipQueryMem(VIP_NIC_HANDLE NicHandle, VIP_PVOID Address, VIP_MEM_HANDLE MemoryHandle,
                           VIP_MEM_ATTRIBUTES *MemAttribs)
    VIP_RETURN VipSetMemAttributes(VIP_NIC_HANDLE NicHandle, VIP_PVOID Address, VIP_MEM_HANDLE MemoryHandle,
                                   VIP_MEM_ATTRIBUTES *MemAttribs)

    VIP_RETURN VipCreateVi(VIP_NIC_HANDLE NicHandle, VIP_VI_ATTRIBUTES *ViAttribs, VIP_CQ_HANDLE SendCQHandle,
                           VIP_CQ_HANDLE RecvCQHandle, VIP_VI_HANDLE *ViHandle)
    VIP_RETURN VipDestroyVi(VIP_VI_HANDLE ViHandle)
    VIP_RETURN VipQueryVi(VIP_VI_HANDLE ViHandle, VIP_VI_STATE *State, VIP_VI_ATTRIBUTES *Attributes,
                          VIP_BOOLEAN *SendQEmpty, VIP_BOOLEAN *RecvQEmpty)
    VIP_RETURN VipSetViAttributes(VIP_VI_HANDLE ViHandle, VIP_VI_ATTRIBUTES *Attributes)

    VIP_RETURN VipPostSend(VIP_VI_HANDLE ViHandle, VIP_DESCRIPTOR *DescriptorPtr, VIP_MEM_HANDLE MemoryHandle)
    VIP_RETURN VipSendDone(VIP_VI_HANDLE ViHandle, VIP_DESCRIPTOR **DescriptorPtr)
    VIP_RETURN VipSendWait(VIP_VI_HANDLE ViHandle, VIP_ULONG Timeout, VIP_DESCRIPTOR **DescriptorPtr)
    VIP_RETURN VipPostRecv(VIP_VI_HANDLE ViHandle, VIP_DESCRIPTOR *DescriptorPtr, VIP_MEM_HANDLE MemoryHandle)
    VIP_RETURN VipRecvDone(VIP_VI_HANDLE ViHandle, VIP_DESCRIPTOR **DescriptorPtr)
    VIP_RETURN VipRecvWait(VIP_VI_HANDLE ViHandle, VIP_ULONG Timeout, VIP_DESCRIPTOR **DescriptorPtr)

    VIP_RETURN VipSendNotify(VIP_VI_HANDLE ViHandle, VIP_PVOID Context, VIP_DESC_HANDLER Callback)
    VIP_RETURN VipRecvNotify(VIP_VI_HANDLE ViHandle, VIP_PVOID Context, VIP_DESC_HANDLER Callback)

    VIP_RETURN VipCreateCQ(VIP_NIC_HANDLE NicHandle, VIP_ULONG EntryCount, VIP_CQ_HANDLE *CQHandle)
    VIP_RETURN VipDestroyCQ(VIP_CQ_HANDLE CQHandle)
    VIP_RETURN VipResizeCQ(VIP_CQ_HANDLE CQHandle, VIP_ULONG EntryCount)
    VIP_RETURN VipCQNotify(VIP_CQ_HANDLE CQHandle, VIP_PVOID Context, VIP_CQ_HANDLER Callback)
    VIP_RETURN VipCQDone(VIP_CQ_HANDLE CQHandle, VIP_VI_HANDLE *ViHandle, VIP_BOOLEAN *RecvQueue)
    VIP_RETURN VipCQWait(VIP_CQ_HANDLE CQHandle, VIP_ULONG Timeout, VIP_VI_HANDLE *ViHandle, VIP_BOOLEAN *RecvQueue)

    VIP_RETURN VipConnectWait(VIP_NIC_HANDLE NicHandle, VIP_NET_ADDRESS *LocalAddr, VIP_ULONG Timeout,
                              VIP_NET_ADDRESS *RemoteAddr, VIP_VI_ATTRIBUTES *RemoteViAttribs,
                              VIP_CONN_HANDLE *ConnHandle)
    VIP_RETURN VipConnectAccept(VIP_CONN_HANDLE ConnHandle, VIP_VI_HANDLE ViHandle)
    VIP_RETURN VipConnectReject(VIP_CONN_HANDLE ConnHandle)
    VIP_RETURN VipConnectRequest(VIP_VI_HANDLE ViHandle, VIP_NET_ADDRESS *LocalAddr, VIP_NET_ADDRESS *RemoteAddr,
                                 VIP_ULONG Timeout, VIP_VI_ATTRIBUTES *RemoteViAttribs)
    VIP_RETURN VipDisconnect(VIP_VI_HANDLE ViHandle)
    VIP_RETURN VipConnectPeerRequest(VIP_VI_HANDLE ViHandle, VIP_NET_ADDRESS *LocalAddr, VIP_NET_ADDRESS *RemoteAddr,
                                     VIP_ULONG Timeout)
    VIP_RETURN VipConnectPeerDone(VIP_VI_HANDLE ViHandle, VIP_VI_ATTRIBUTES *RemoteAttribs)
    VIP_RETURN VipConnectPeerWait(VIP_VI_HANDLE ViHandle, VIP_VI_ATTRIBUTES *RemoteAttribs)

    VIP_RETURN VipNSInit(VIP_NIC_HANDLE NicHandle, VIP_PVOID NSInitInfo)
    VIP_RETURN VipNSGetHostByName(VIP_NIC_HANDLE NicHandle, VIP_CHAR *Name, VIP_NET_ADDRESS *Address,
                                  VIP_ULONG NameIndex)
    VIP_RETURN VipNSGetHostByAddr(VIP_NIC_HANDLE NicHandle, VIP_NET_ADDRESS *Address, VIP_CHAR *Name,
                                  VIP_ULONG *NameLen)
    VIP_RETURN VipNSShutdown(VIP_NIC_HANDLE NicHandle)

    VIP_RETURN VipAddTagCQ(VIP_CQ_HANDLE CQHandle, VIP_PVOID Event, VIP_ULONG Tag, VIP_ULONG Priority)
    VIP_RETURN VipRemoveTagCQ(VIP_CQ_HANDLE CQHandle, VIP_PVOID Event, VIP_ULONG Tag)
    VIP_RETURN VipPostDeferredSends(VIP_VI_HANDLE ViHandle, VIP_BOOLEAN Enable, VIP_BOOLEAN *Deferred)
    VIP_PVOID VipGetUserData(VIP_VI_HANDLE ViHandle)
    void VipSetUserData(VIP_VI_HANDLE ViHandle, VIP_PVOID UserData)


cdef extern from "viakit.h" nogil:
    enum:
        VIAKIT_N_COUNTERS
        VIAKIT_WIRE_VERSION

    ctypedef enum viakit_form:
        VIAKIT_FORM_AUTO
        VIAKIT_FORM_PLAIN
        VIAKIT_FORM_UDP

    ctypedef enum viakit_retransmission:
        VIAKIT_SELECTIVE
        VIAKIT_GO_BACK_N

    ctypedef enum viakit_checksum:
        VIAKIT_CHECKSUM_AUTO
        VIAKIT_CHECKSUM_CRC

    ctypedef struct viakit_nic_options:
        size_t size
        viakit_form form
        VIP_UINT32 mtu
        VIP_UINT32 ring_slots
        VIP_UINT32 window
        VIP_UINT32 rto_us
        VIP_UINT32 max_retries
        VIP_UINT32 ack_delay_us
        VIP_UINT32 keepalive_ms
        int spin_us
        VIP_UINT32 first_psn
        int no_thread
        int no_cma
        int no_map
        viakit_retransmission retransmission
        viakit_checksum checksum
        VIP_UINT32 takeover_us

    ctypedef enum viakit_named_by:
        VIAKIT_BY_NAME
        VIAKIT_BY_INTERFACE
        VIAKIT_BY_ADDRESS

    ctypedef struct viakit_link_info:
        const char *name
        const char *devices
        const char *transport
        int leaves_process
        int leaves_host
        int lossless
        int maps_memory
        viakit_named_by named_by

    const viakit_link_info *viakit_link(int index)
    const viakit_link_info *viakit_link_of(const char *device)

    VIP_RETURN viakit_virtual_begin(int n_ranks, int rank, VIP_ULONG timeout_ms)
    void viakit_virtual_end()
    VIP_RETURN viakit_virtual_compute(double seconds)
    uint64_t viakit_time_ns()
    int viakit_time_is_virtual()

    VIP_RETURN viakit_open_nic(const char *device, const viakit_nic_options *options, VIP_NIC_HANDLE *nic)

    ctypedef struct viakit_nic_info:
        char link[16]
        char device[64]
        char interface[16]
        char form[8]
        VIP_UINT8 address[6]
        VIP_UINT16 port
        VIP_UINT32 mtu
        VIP_UINT32 max_payload
        VIP_UINT32 super_payload
        VIP_UINT32 ring_slots
        VIP_UINT32 window
        VIP_UINT64 bytes_registered
        VIP_UINT64 bytes_pinned
        VIP_UINT64 bytes_to_map
        int lossless
        int cma
        int thread
        int vis
        int regions
        int ptags
        int cqs
        char trouble[160]

    ctypedef struct viakit_vi_info:
        int lossless
        viakit_retransmission retransmission
        double srtt_us
        double rttvar_us
        double rto_us
        double tail_probe_us
        VIP_UINT32 window
        VIP_UINT32 sends_in_flight
        VIP_UINT32 frames_in_flight
        VIP_UINT32 frames_missing
        VIP_UINT32 reads_open
        VIP_UINT32 retries

    VIP_RETURN viakit_query_vi(VIP_VI_HANDLE vi, viakit_vi_info *info)
    VIP_RETURN viakit_set_vi_secret(VIP_VI_HANDLE vi, const void *secret, size_t len)

    VIP_RETURN viakit_query_nic(VIP_NIC_HANDLE nic, viakit_nic_info *info)
    VIP_RETURN viakit_poll(VIP_NIC_HANDLE nic, int *n_events)
    VIP_RETURN viakit_alloc(VIP_NIC_HANDLE nic, size_t len, void **address)
    VIP_RETURN viakit_free(VIP_NIC_HANDLE nic, void *address)

    VIP_RETURN viakit_nic_counters(VIP_NIC_HANDLE nic, VIP_UINT64 *values)
    VIP_RETURN viakit_snapshot(VIP_NIC_HANDLE nic, char *text, size_t size, size_t *len)
    VIP_RETURN viakit_vi_counters(VIP_VI_HANDLE vi, VIP_UINT64 *values)
    const char *viakit_counter_name(int counter)
    const char *viakit_counter_text(int counter)

    ctypedef struct viakit_tap_options:
        size_t size
        VIP_UINT32 snap_len
        VIP_UINT32 ring_bytes
        int events
        int no_frames
        VIP_UINT64 file_bytes

    ctypedef struct viakit_tap_info:
        char file[512]
        VIP_UINT64 frames_sent
        VIP_UINT64 frames_received
        VIP_UINT64 events
        VIP_UINT64 lost

    VIP_RETURN viakit_tap_open(VIP_NIC_HANDLE nic, const char *file, const viakit_tap_options *options)
    VIP_RETURN viakit_tap_close(VIP_NIC_HANDLE nic)
    VIP_RETURN viakit_tap_flush(VIP_NIC_HANDLE nic)
    VIP_RETURN viakit_tap_read(VIP_NIC_HANDLE nic, void *buffer, size_t len, size_t *n)
    VIP_RETURN viakit_query_tap(VIP_NIC_HANDLE nic, viakit_tap_info *info)

    ctypedef struct viakit_live:
        VIP_UINT32 nics
        VIP_UINT32 vis
        VIP_UINT32 cqs
        VIP_UINT32 ptags
        VIP_UINT32 regions
        VIP_UINT32 connections
        VIP_UINT32 allocations

    void viakit_live_objects(viakit_live *live)

    const char *viakit_last_error()
    const char *viakit_return_name(int code)
    const char *viakit_return_text(int code)
    const char *viakit_error_code_name(int code)
    const char *viakit_error_code_text(int code)
    const char *viakit_state_name(int state)

    ctypedef enum viakit_verdict:
        VIAKIT_PASS
        VIAKIT_DROP
        VIAKIT_DUPLICATE
        VIAKIT_HOLD
        VIAKIT_CORRUPT

    enum:
        VIAKIT_MAX_FAULT_RULES

    const double VIAKIT_FOR_EVER

    ctypedef struct viakit_fault_rule:
        viakit_verdict verdict
        VIP_UINT32 kind
        VIP_UINT64 first
        VIP_UINT64 last

    ctypedef struct viakit_faults:
        size_t size
        VIP_UINT64 seed
        double loss
        double duplicate
        double reorder
        double corrupt
        VIP_UINT32 reorder_distance
        VIP_UINT32 corrupt_bits
        VIP_UINT32 kinds
        double delay_us
        double jitter_us
        double stall_us
        double stall_every_us
        double partition_us
        double partition_after_us
        VIP_UINT64 partition_frames
        VIP_UINT64 partition_after_frames
        VIP_UINT32 n_rules
        viakit_fault_rule rules[8]

    VIP_RETURN viakit_set_faults(VIP_NIC_HANDLE nic, const viakit_faults *faults)
    VIP_RETURN viakit_get_faults(VIP_NIC_HANDLE nic, viakit_faults *faults, int *active)
    VIP_RETURN viakit_parse_faults(const char *text, viakit_faults *faults)
    VIP_RETURN viakit_format_faults(const viakit_faults *faults, char *text, size_t len)
    unsigned viakit_fault_of(const viakit_faults *faults, VIP_UINT64 index, int kind, VIP_UINT64 index_of_kind)
    const char *viakit_frame_kind_name(int kind)

    void viakit_set_interrupt(int (*check)(void *context) noexcept nogil, void *context)
