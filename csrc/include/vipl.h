/*
 * vipl.h - the Virtual Interface Provider Library (VIPL 1.0), as programs of 1998-2004 expect it.
 *
 * A VI is a pair of work queues: a program posts *descriptors* that point to *registered* memory, and later reaps them
 * when they are complete. Data is copied in between only if a counter reports it (viakit.h).
 *
 * The header is plain C: it compiles with -std=gnu89 and as C++. Values and layouts are fixed by the programs that were
 * compiled against them; the offsets that matter are asserted in csrc/via/work.h.
 *
 * The descriptor had two namings: CS/DS (VI Developer's Guide 0.95 and later Giganet headers) and Control/Data (1998).
 * Both work here on the same 64 bytes. Each struct, union and enum has a tag, _NAME, as programs used in declarations.
 *
 * CS.Length after a receive is the number of bytes that arrived in the descriptor's own segments. It is 0 if an RDMA
 * write with immediate data consumed the receive: that data went to the address that the writer gave.
 *
 * A NULL protection tag matches any tag of its NIC, in a VI, in a region and in both. So does a NULL
 * VIP_MEM_ATTRIBUTES, which also grants no RDMA.
 *
 * Rules for all calls:
 *
 * - Threads: any thread may call any function at any time. Calls on one NIC exclude each other. A child of fork() must
 *   open NICs of its own.
 * - Results: OUT parameters are set on VIP_SUCCESS only, and any other code leaves the objects as they were, unless a
 *   comment says otherwise. viakit_last_error() explains an error. Errors of a transfer are in the descriptor's status.
 * - Blocking: the Wait calls, VipConnectRequest, VipConnectAccept of a VI with a secret, the name service,
 *   VipQuerySystemManagementInfo, and the opening and closing of a NIC. VipDeregisterMem and VipSetMemAttributes wait
 *   until peers have ended their accesses, for one second at most. No other call waits for another process.
 * - Time-outs are in ms. VIP_INFINITE has no end. With 0 the Wait calls poll once. VipConnectRequest and
 *   VipConnectPeerRequest return VIP_INVALID_PARAMETER for 0.
 * - Handles: an object that was destroyed makes its handle invalid. Calls with it return VIP_INVALID_PARAMETER.
 */
#ifndef VIPL_H
#define VIPL_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------- basic types */

#ifndef IN
#define IN
#endif
#ifndef OUT
#define OUT
#endif

#if defined(__GNUC__)
#define VIPL_EXPORT __attribute__((visibility("default")))
#define VIPL_ANONYMOUS __extension__
#else
#define VIPL_EXPORT
#define VIPL_ANONYMOUS
#endif

typedef void *VIP_PVOID;
typedef int VIP_BOOLEAN;
typedef char VIP_CHAR;
typedef unsigned char VIP_UCHAR;
typedef short VIP_SHORT;
typedef unsigned short VIP_USHORT;
typedef long VIP_LONG;
typedef unsigned long VIP_ULONG;
typedef __UINT64_TYPE__ VIP_UINT64;
typedef __UINT32_TYPE__ VIP_UINT32;
typedef __UINT16_TYPE__ VIP_UINT16;
typedef __UINT8_TYPE__ VIP_UINT8;

#define VIP_TRUE 1
#define VIP_FALSE 0

typedef VIP_PVOID VIP_QOS; /* undefined contents: pass 0 */
typedef VIP_PVOID VIP_NIC_HANDLE;
typedef VIP_PVOID VIP_VI_HANDLE;
typedef VIP_PVOID VIP_CQ_HANDLE;
typedef VIP_PVOID VIP_PROTECTION_HANDLE;
typedef VIP_PVOID VIP_CONN_HANDLE;
typedef VIP_PVOID VIP_EVENT_HANDLE;
typedef VIP_UINT32 VIP_MEM_HANDLE;

/* Time-outs are in milliseconds. 32 one bits survive both VIP_ULONG and a program that stored the value in an int. */
#ifndef INFINITE
#define INFINITE 0xFFFFFFFFUL
#endif
#define VIP_INFINITE INFINITE

#define VIP_DESCRIPTOR_ALIGNMENT 64

/* ---------------------------------------------------------------- descriptors */

typedef union _VIP_PVOID64 {
    VIP_UINT64 AddressBits;
    VIP_PVOID Address;
    struct _VIP_DESCRIPTOR *Descriptor;
} VIP_PVOID64;

/* From the post until the Done or Wait call that returns it, a descriptor belongs to the provider, and the memory that
 * it names as well: the program must not change, move or free either. Lengths are in bytes. */
typedef struct _VIP_CONTROL_SEGMENT {
    VIP_PVOID64 Next; /* the provider may overwrite it while the descriptor is posted */
    VIP_MEM_HANDLE NextHandle;
    VIP_UINT16 SegCount;
    VIP_UINT16 Control; /* VIP_CONTROL_* */
    VIP_UINT32 Reserved;
    VIP_UINT32 ImmediateData;
    VIP_UINT32 Length;          /* sum of the local segments, or after a receive the bytes that arrived in them */
    volatile VIP_UINT32 Status; /* VIP_STATUS_*; written last */
} VIP_CONTROL_SEGMENT;

typedef struct _VIP_ADDRESS_SEGMENT {
    VIP_PVOID64 Data;
    VIP_MEM_HANDLE Handle;
    VIP_UINT32 Reserved;
} VIP_ADDRESS_SEGMENT; /* the remote side of an RDMA operation */

typedef struct _VIP_DATA_SEGMENT {
    VIP_PVOID64 Data;
    VIP_MEM_HANDLE Handle;
    VIP_UINT32 Length;
} VIP_DATA_SEGMENT; /* a piece of local memory */

typedef union _VIP_DESCRIPTOR_SEGMENT {
    VIP_ADDRESS_SEGMENT Remote;
    VIP_DATA_SEGMENT Local;
} VIP_DESCRIPTOR_SEGMENT;

/* 64 bytes with two segments; further segments follow in memory. */
VIPL_ANONYMOUS typedef struct _VIP_DESCRIPTOR {
    VIPL_ANONYMOUS union {
        VIP_CONTROL_SEGMENT CS;
        VIP_CONTROL_SEGMENT Control;
    };
    VIPL_ANONYMOUS union {
        VIP_DESCRIPTOR_SEGMENT DS[2];
        VIP_DATA_SEGMENT Data[2];
    };
} VIP_DESCRIPTOR;

/* Control, set by the program. IMMEDIATE: the receiver gets ImmediateData; an RDMA write with it consumes a receive.
 * QFENCE: the descriptor waits until all RDMA reads before it are complete. Reserved bits must be 0. */
#define VIP_CONTROL_OP_SENDRECV 0x0
#define VIP_CONTROL_OP_RDMAWRITE 0x1
#define VIP_CONTROL_OP_RDMAREAD 0x2
#define VIP_CONTROL_OP_RESERVED 0x3
#define VIP_CONTROL_OP_MASK 0x3
#define VIP_CONTROL_IMMEDIATE 0x4
#define VIP_CONTROL_QFENCE 0x8
#define VIP_CONTROL_RESERVED 0xFFF0

/* Status, set by the provider. 0 while the descriptor is posted. DONE is stored after all that belongs to the
 * completion, so a program may poll it without a call, with an acquiring load. The error bits:
 *
 *   FORMAT         the control segment is not valid: Control, SegCount, or a Length that is not the segments' sum
 *   PROTECTION     a segment is not in registered memory, or the tags do not match
 *   LENGTH         longer than MaxTransferSize, or than the receive's segments
 *   PARTIAL        a part of the message was lost (unreliable); with TRANSPORT
 *   DESC_FLUSHED   the VI was not connected, or its connection ended, before the descriptor's turn
 *   TRANSPORT      the peer did not acknowledge in time, or the data could not be transferred
 *   RDMA_PROT      the target does not grant the access
 *   REMOTE_DESC    the receive at the peer was missing, too short or not valid */
#define VIP_STATUS_DONE 0x1
#define VIP_STATUS_FORMAT_ERROR 0x2
#define VIP_STATUS_PROTECTION_ERROR 0x4
#define VIP_STATUS_LENGTH_ERROR 0x8
#define VIP_STATUS_PARTIAL_ERROR 0x10
#define VIP_STATUS_DESC_FLUSHED_ERROR 0x20
#define VIP_STATUS_TRANSPORT_ERROR 0x40
#define VIP_STATUS_RDMA_PROT_ERROR 0x80
#define VIP_STATUS_REMOTE_DESC_ERROR 0x100
#define VIP_STATUS_ERROR_MASK 0x1FE
#define VIP_STATUS_OP_SEND 0x0
#define VIP_STATUS_OP_RECEIVE 0x10000
#define VIP_STATUS_OP_RDMA_WRITE 0x20000
#define VIP_STATUS_OP_REMOTE_RDMA_WRITE 0x30000
#define VIP_STATUS_OP_RDMA_READ 0x40000
#define VIP_STATUS_OP_MASK 0x70000
#define VIP_STATUS_IMMEDIATE 0x80000
#define VIP_STATUS_RESERVED 0xFFF0FE00

/* ---------------------------------------------------------------- attributes */

/* Host address bytes, then discriminator bytes, from offset 4 on. */
typedef struct _VIP_NET_ADDRESS {
    VIP_UINT16 HostAddressLen;
    VIP_UINT16 DiscriminatorLen;
    VIP_UINT8 HostAddress[1];
} VIP_NET_ADDRESS;

/* UNRELIABLE: messages may be lost, and an error concerns one descriptor. RELIABLE_DELIVERY: a send is complete when
 * the peer's NIC has it. RELIABLE_RECEPTION: when it lies in the peer's memory. On the last two any error ends the
 * connection. */
typedef VIP_USHORT VIP_RELIABILITY_LEVEL; /* one level, or a mask of them */
#define VIP_SERVICE_UNRELIABLE 0x1
#define VIP_SERVICE_RELIABLE_DELIVERY 0x2
#define VIP_SERVICE_RELIABLE_RECEPTION 0x4
#define VIP_BASE_SERVICES (VIP_SERVICE_UNRELIABLE + VIP_SERVICE_RELIABLE_DELIVERY + VIP_SERVICE_RELIABLE_RECEPTION)
#define VIP_SERVICE_ACK (1 << 14)
#define VIP_SERVICE_DFC (1 << 15)

typedef struct _VIP_NIC_ATTRIBUTES {
    VIP_CHAR Name[64];
    VIP_ULONG HardwareVersion;
    VIP_ULONG ProviderVersion;
    VIP_UINT16 NicAddressLen;
    const VIP_UINT8 *LocalNicAddress;
    VIP_BOOLEAN ThreadSafe;
    VIP_UINT16 MaxDiscriminatorLen;
    VIP_ULONG MaxRegisterBytes;
    VIP_ULONG MaxRegisterRegions;
    VIP_ULONG MaxRegisterBlockBytes;
    VIP_ULONG MaxVI;
    VIP_ULONG MaxDescriptorsPerQueue;
    VIP_ULONG MaxSegmentsPerDesc;
    VIP_ULONG MaxCQ;
    VIP_ULONG MaxCQEntries;
    VIP_ULONG MaxTransferSize;
    VIP_ULONG NativeMTU;
    VIP_ULONG MaxPtags;
    VIP_RELIABILITY_LEVEL ReliabilityLevelSupport;
    VIP_RELIABILITY_LEVEL RDMAReadSupport;
} VIP_NIC_ATTRIBUTES;

/* Reliability level, MaxTransferSize and QoS of both sides must agree to connect. MaxTransferSize is in bytes, 0 for
 * the largest. EnableRdma... : what the peer may do in this VI's memory, if the region allows it as well. */
typedef struct _VIP_VI_ATTRIBUTES {
    VIP_RELIABILITY_LEVEL ReliabilityLevel;
    VIP_ULONG MaxTransferSize;
    VIP_QOS QoS;
    VIP_PROTECTION_HANDLE Ptag;
    VIP_BOOLEAN EnableRdmaWrite;
    VIP_BOOLEAN EnableRdmaRead;
} VIP_VI_ATTRIBUTES;

typedef struct _VIP_MEM_ATTRIBUTES {
    VIP_PROTECTION_HANDLE Ptag;
    VIP_BOOLEAN EnableRdmaWrite;
    VIP_BOOLEAN EnableRdmaRead;
} VIP_MEM_ATTRIBUTES;

/* docs/states.md has the table of states and events. */
typedef enum _VIP_VI_STATE {
    VIP_STATE_IDLE = 0,
    VIP_STATE_CONNECTED = 1,
    VIP_STATE_CONNECT_PENDING = 2,
    VIP_STATE_ERROR = 3
} VIP_VI_STATE;

/* ---------------------------------------------------------------- errors */

typedef enum _VIP_RESOURCE_CODE {
    VIP_RESOURCE_NIC = 0,
    VIP_RESOURCE_VI = 1,
    VIP_RESOURCE_CQ = 2,
    VIP_RESOURCE_DESCRIPTOR = 3
} VIP_RESOURCE_CODE;

typedef enum _VIP_ERROR_CODE {
    VIP_ERROR_POST_DESC = 0,
    VIP_ERROR_CONN_LOST = 1,
    VIP_ERROR_RECVQ_EMPTY = 2,
    VIP_ERROR_VI_OVERRUN = 3,
    VIP_ERROR_RDMAW_PROT = 4,
    VIP_ERROR_RDMAW_DATA = 5,
    VIP_ERROR_RDMAW_ABORT = 6,
    VIP_ERROR_RDMAR_PROT = 7,
    VIP_ERROR_COMP_PROT = 8,
    VIP_ERROR_RDMA_TRANSPORT = 9,
    VIP_ERROR_CATASTROPHIC = 10
} VIP_ERROR_CODE;

/* The argument of an asynchronous error handler. Handles that do not apply are NULL. The struct is the provider's, and
 * valid during the call. */
typedef struct _VIP_ERROR_DESCRIPTOR {
    VIP_NIC_HANDLE NicHandle;
    VIP_VI_HANDLE ViHandle;
    VIP_CQ_HANDLE CQHandle;
    VIP_DESCRIPTOR *DescriptorPtr;
    VIP_ULONG OpCode;
    VIP_RESOURCE_CODE ResourceCode;
    VIP_ERROR_CODE ErrorCode;
} VIP_ERROR_DESCRIPTOR;

typedef enum _VIP_RETURN {
    VIP_SUCCESS = 0,
    VIP_NOT_DONE = 1,
    VIP_INVALID_PARAMETER = 2,
    VIP_ERROR_RESOURCE = 3,
    VIP_TIMEOUT = 4,
    VIP_REJECT = 5,
    VIP_INVALID_RELIABILITY_LEVEL = 6,
    VIP_INVALID_MTU = 7,
    VIP_INVALID_QOS = 8,
    VIP_INVALID_PTAG = 9,
    VIP_INVALID_RDMAREAD = 10,
    VIP_DESCRIPTOR_ERROR = 11,
    VIP_INVALID_STATE = 12,
    VIP_ERROR_NAMESERVICE = 13,
    VIP_NO_MATCH = 14,
    VIP_NOT_REACHABLE = 15,
    VIP_ERROR_NOT_SUPPORTED = 16,
    VIP_ERROR = VIP_DESCRIPTOR_ERROR /* another name, from Giganet's header */
} VIP_RETURN;

typedef struct _VIP_AUTODISCOVERY_LIST {
    VIP_ULONG NumberOfHops;
    VIP_NET_ADDRESS *ADAddrArray;
    VIP_ULONG NumAdAddrs;
} VIP_AUTODISCOVERY_LIST;

#define VIP_SMI_AUTODISCOVERY ((VIP_ULONG)1)

/* Handlers run on the NIC's thread, one at a time, and may call VIPL, except for VipCloseNic of their NIC. On a NIC
 * without a thread they run in waiting calls and in viakit_poll(), possibly in several threads at once. */
typedef void (*VIP_ERROR_HANDLER)(VIP_PVOID Context, VIP_ERROR_DESCRIPTOR *ErrorDesc);
typedef void (*VIP_DESC_HANDLER)(VIP_PVOID Context, VIP_NIC_HANDLE NicHandle, VIP_VI_HANDLE ViHandle,
                                 VIP_DESCRIPTOR *Descriptor);
typedef void (*VIP_CQ_HANDLER)(VIP_PVOID Context, VIP_NIC_HANDLE NicHandle, VIP_VI_HANDLE ViHandle,
                               VIP_BOOLEAN RecvQueue);
/* The names of the last two in Giganet's header. */
typedef VIP_DESC_HANDLER VIP_VI_CALLBACK;
typedef VIP_CQ_HANDLER VIP_CQ_CALLBACK;

/* ---------------------------------------------------------------- the NIC
 *
 * VipCloseNic destroys all objects of the NIC that the program left, ends waiting calls of other threads, and notifies
 * the peers. The list that VipQuerySystemManagementInfo returns is the provider's, until the next query or the close. A
 * NULL handler makes VipErrorCallback restore the default one, which prints to stderr. */

VIPL_EXPORT VIP_RETURN VipOpenNic(IN const VIP_CHAR *DeviceName, OUT VIP_NIC_HANDLE *NicHandle);
VIPL_EXPORT VIP_RETURN VipCloseNic(IN VIP_NIC_HANDLE NicHandle);
VIPL_EXPORT VIP_RETURN VipQueryNic(IN VIP_NIC_HANDLE NicHandle, OUT VIP_NIC_ATTRIBUTES *Attributes);
VIPL_EXPORT VIP_RETURN VipQuerySystemManagementInfo(IN VIP_NIC_HANDLE NicHandle, IN VIP_ULONG InfoType,
                                                    OUT VIP_PVOID SysManInfo);
VIPL_EXPORT VIP_RETURN VipErrorCallback(IN VIP_NIC_HANDLE NicHandle, IN VIP_PVOID Context,
                                        IN VIP_ERROR_HANDLER Handler);

/* ---------------------------------------------------------------- protection and memory
 *
 * A region need not be aligned. The same memory may be registered several times. After VipDeregisterMem no peer and no
 * NIC accesses it: the program may free it. The exception is a process that is stopped in the middle of a copy for more
 * than one second: it completes the copy when it resumes. VipDestroyPtag returns VIP_ERROR_RESOURCE while a VI or a
 * region uses the tag. */

VIPL_EXPORT VIP_RETURN VipCreatePtag(IN VIP_NIC_HANDLE NicHandle, OUT VIP_PROTECTION_HANDLE *Ptag);
VIPL_EXPORT VIP_RETURN VipDestroyPtag(IN VIP_NIC_HANDLE NicHandle, IN VIP_PROTECTION_HANDLE Ptag);
VIPL_EXPORT VIP_RETURN VipRegisterMem(IN VIP_NIC_HANDLE NicHandle, IN VIP_PVOID VirtualAddress, IN VIP_ULONG Length,
                                      IN VIP_MEM_ATTRIBUTES *MemAttribs, OUT VIP_MEM_HANDLE *MemoryHandle);
VIPL_EXPORT VIP_RETURN VipDeregisterMem(IN VIP_NIC_HANDLE NicHandle, IN VIP_PVOID VirtualAddress,
                                        IN VIP_MEM_HANDLE MemoryHandle);
VIPL_EXPORT VIP_RETURN VipQueryMem(IN VIP_NIC_HANDLE NicHandle, IN VIP_PVOID Address, IN VIP_MEM_HANDLE MemoryHandle,
                                   OUT VIP_MEM_ATTRIBUTES *MemAttribs);
VIPL_EXPORT VIP_RETURN VipSetMemAttributes(IN VIP_NIC_HANDLE NicHandle, IN VIP_PVOID Address,
                                           IN VIP_MEM_HANDLE MemoryHandle, IN VIP_MEM_ATTRIBUTES *MemAttribs);

/* ---------------------------------------------------------------- virtual interfaces
 *
 * A queue without a completion queue (NULL) is waited for by itself. VipDestroyVi returns VIP_ERROR_RESOURCE unless
 * the VI is idle and all its descriptors were taken back. Attributes can be set while it is idle. */

VIPL_EXPORT VIP_RETURN VipCreateVi(IN VIP_NIC_HANDLE NicHandle, IN VIP_VI_ATTRIBUTES *ViAttribs,
                                   IN VIP_CQ_HANDLE SendCQHandle, IN VIP_CQ_HANDLE RecvCQHandle,
                                   OUT VIP_VI_HANDLE *ViHandle);
VIPL_EXPORT VIP_RETURN VipDestroyVi(IN VIP_VI_HANDLE ViHandle);
VIPL_EXPORT VIP_RETURN VipQueryVi(IN VIP_VI_HANDLE ViHandle, OUT VIP_VI_STATE *State, OUT VIP_VI_ATTRIBUTES *Attributes,
                                  OUT VIP_BOOLEAN *SendQEmpty, OUT VIP_BOOLEAN *RecvQEmpty);
VIPL_EXPORT VIP_RETURN VipSetViAttributes(IN VIP_VI_HANDLE ViHandle, IN VIP_VI_ATTRIBUTES *Attributes);

/* ---------------------------------------------------------------- data transfer
 *
 * MemoryHandle is that of the memory that holds the descriptor. Descriptors of a queue complete in the order of
 * posting. Done and Wait return the oldest complete one: VIP_SUCCESS, or VIP_DESCRIPTOR_ERROR if its status has an
 * error bit. Both set *DescriptorPtr. VIP_DESCRIPTOR_ERROR with NULL: the queue is empty. VIP_NOT_DONE: the oldest is
 * not complete. Notify calls the handler once, for the next completion. */

VIPL_EXPORT VIP_RETURN VipPostSend(IN VIP_VI_HANDLE ViHandle, IN VIP_DESCRIPTOR *DescriptorPtr,
                                   IN VIP_MEM_HANDLE MemoryHandle);
VIPL_EXPORT VIP_RETURN VipSendDone(IN VIP_VI_HANDLE ViHandle, OUT VIP_DESCRIPTOR **DescriptorPtr);
VIPL_EXPORT VIP_RETURN VipSendWait(IN VIP_VI_HANDLE ViHandle, IN VIP_ULONG Timeout, OUT VIP_DESCRIPTOR **DescriptorPtr);
VIPL_EXPORT VIP_RETURN VipSendNotify(IN VIP_VI_HANDLE ViHandle, IN VIP_PVOID Context, IN VIP_DESC_HANDLER Callback);
VIPL_EXPORT VIP_RETURN VipPostRecv(IN VIP_VI_HANDLE ViHandle, IN VIP_DESCRIPTOR *DescriptorPtr,
                                   IN VIP_MEM_HANDLE MemoryHandle);
VIPL_EXPORT VIP_RETURN VipRecvDone(IN VIP_VI_HANDLE ViHandle, OUT VIP_DESCRIPTOR **DescriptorPtr);
VIPL_EXPORT VIP_RETURN VipRecvWait(IN VIP_VI_HANDLE ViHandle, IN VIP_ULONG Timeout, OUT VIP_DESCRIPTOR **DescriptorPtr);
VIPL_EXPORT VIP_RETURN VipRecvNotify(IN VIP_VI_HANDLE ViHandle, IN VIP_PVOID Context, IN VIP_DESC_HANDLER Callback);

/* ---------------------------------------------------------------- completion queues
 *
 * An entry names a VI and one of its queues. The program takes the descriptor with that queue's Done call. A queue that
 * is full loses further entries and reports VIP_ERROR_CATASTROPHIC, so EntryCount should cover all posted
 * descriptors. */

VIPL_EXPORT VIP_RETURN VipCreateCQ(IN VIP_NIC_HANDLE NicHandle, IN VIP_ULONG EntryCount, OUT VIP_CQ_HANDLE *CQHandle);
VIPL_EXPORT VIP_RETURN VipDestroyCQ(IN VIP_CQ_HANDLE CQHandle);
VIPL_EXPORT VIP_RETURN VipResizeCQ(IN VIP_CQ_HANDLE CQHandle, IN VIP_ULONG EntryCount);
VIPL_EXPORT VIP_RETURN VipCQDone(IN VIP_CQ_HANDLE CQHandle, OUT VIP_VI_HANDLE *ViHandle, OUT VIP_BOOLEAN *RecvQueue);
VIPL_EXPORT VIP_RETURN VipCQWait(IN VIP_CQ_HANDLE CQHandle, IN VIP_ULONG Timeout, OUT VIP_VI_HANDLE *ViHandle,
                                 OUT VIP_BOOLEAN *RecvQueue);
VIPL_EXPORT VIP_RETURN VipCQNotify(IN VIP_CQ_HANDLE CQHandle, IN VIP_PVOID Context, IN VIP_CQ_HANDLER Callback);

/* ---------------------------------------------------------------- connections
 *
 * A server waits, and then accepts or rejects the handle, which is invalid afterwards. An accept that fails leaves it
 * valid, for another VI or a reject, unless the code is VIP_TIMEOUT: the client has withdrawn. RemoteAddr has room for
 * 6 bytes and a discriminator of 64. A client's request ends with VIP_SUCCESS, VIP_REJECT, VIP_NO_MATCH (no server
 * waits), VIP_NOT_REACHABLE or VIP_TIMEOUT. PeerRequest returns at once; PeerDone returns VIP_NOT_DONE until the result
 * is there, and then the result once. VipDisconnect flushes both queues, in any state. */

VIPL_EXPORT VIP_RETURN VipConnectWait(IN VIP_NIC_HANDLE NicHandle, IN VIP_NET_ADDRESS *LocalAddr, IN VIP_ULONG Timeout,
                                      OUT VIP_NET_ADDRESS *RemoteAddr, OUT VIP_VI_ATTRIBUTES *RemoteViAttribs,
                                      OUT VIP_CONN_HANDLE *ConnHandle);
VIPL_EXPORT VIP_RETURN VipConnectAccept(IN VIP_CONN_HANDLE ConnHandle, IN VIP_VI_HANDLE ViHandle);
VIPL_EXPORT VIP_RETURN VipConnectReject(IN VIP_CONN_HANDLE ConnHandle);
VIPL_EXPORT VIP_RETURN VipConnectRequest(IN VIP_VI_HANDLE ViHandle, IN VIP_NET_ADDRESS *LocalAddr,
                                         IN VIP_NET_ADDRESS *RemoteAddr, IN VIP_ULONG Timeout,
                                         OUT VIP_VI_ATTRIBUTES *RemoteViAttribs);
VIPL_EXPORT VIP_RETURN VipDisconnect(IN VIP_VI_HANDLE ViHandle);
VIPL_EXPORT VIP_RETURN VipConnectPeerRequest(IN VIP_VI_HANDLE ViHandle, IN VIP_NET_ADDRESS *LocalAddr,
                                             IN VIP_NET_ADDRESS *RemoteAddr, IN VIP_ULONG Timeout);
VIPL_EXPORT VIP_RETURN VipConnectPeerDone(IN VIP_VI_HANDLE ViHandle, OUT VIP_VI_ATTRIBUTES *RemoteAttribs);
VIPL_EXPORT VIP_RETURN VipConnectPeerWait(IN VIP_VI_HANDLE ViHandle, OUT VIP_VI_ATTRIBUTES *RemoteAttribs);

/* ---------------------------------------------------------------- name service
 *
 * NSInitInfo is NULL or the path of a file of hosts. NameIndex counts the addresses of a name from 0. *NameLen is the
 * room of Name in bytes, and becomes the length that is needed, the final zero included, also on VIP_ERROR_RESOURCE. */

VIPL_EXPORT VIP_RETURN VipNSInit(IN VIP_NIC_HANDLE NicHandle, IN VIP_PVOID NSInitInfo);
VIPL_EXPORT VIP_RETURN VipNSGetHostByName(IN VIP_NIC_HANDLE NicHandle, IN VIP_CHAR *Name, OUT VIP_NET_ADDRESS *Address,
                                          IN VIP_ULONG NameIndex);
VIPL_EXPORT VIP_RETURN VipNSGetHostByAddr(IN VIP_NIC_HANDLE NicHandle, IN VIP_NET_ADDRESS *Address, OUT VIP_CHAR *Name,
                                          VIP_ULONG *NameLen);
VIPL_EXPORT VIP_RETURN VipNSShutdown(IN VIP_NIC_HANDLE NicHandle);

/* ---------------------------------------------------------------- extensions (Giganet, VIDF) */

VIPL_EXPORT VIP_RETURN VipAddTagCQ(IN VIP_CQ_HANDLE CQHandle, IN VIP_EVENT_HANDLE Event, IN VIP_ULONG Tag,
                                   IN VIP_ULONG Priority);
VIPL_EXPORT VIP_RETURN VipRemoveTagCQ(IN VIP_CQ_HANDLE CQHandle, IN VIP_EVENT_HANDLE Event, IN VIP_ULONG Tag);
VIPL_EXPORT VIP_RETURN VipPostDeferredSends(IN VIP_VI_HANDLE ViHandle, IN VIP_BOOLEAN Enable,
                                            OUT VIP_BOOLEAN *Deferred);
VIPL_EXPORT VIP_PVOID VipGetUserData(IN VIP_VI_HANDLE ViHandle);
VIPL_EXPORT void VipSetUserData(IN VIP_VI_HANDLE ViHandle, IN VIP_PVOID UserData);

#ifdef __cplusplus
}
#endif

#endif /* VIPL_H */
