"""Windows: one-sided communication with mpi4py's interface, ``MPI.Win``.

A put of contiguous data is one RDMA write, a get one RDMA read, where the channel has them. Updates, locks, and puts on
other channels are active messages, which the target's NIC thread handles while the target computes. docs/onesided.md
explains both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from viakit import _core
from viakit.base.words import counted
from viakit.comm import windows
from viakit.comm.attributes import HasAttributes
from viakit.comm.buffers import Buffer
from viakit.comm.errhandler import HasErrhandler
from viakit.comm.errors import CLASSES, Exception, error
from viakit.comm.group import Group
from viakit.comm.handle import Handle, forget
from viakit.comm.info import Info
from viakit.comm.spec import BOTTOM, simple
from viakit.comm.status import PROC_NULL
from viakit.comm.win_access import Access
from viakit.comm.win_epochs import Epochs, Synchronisation

if TYPE_CHECKING:
    from typing_extensions import Self

WIN_BASE, WIN_SIZE, WIN_DISP_UNIT, WIN_CREATE_FLAVOR, WIN_MODEL = 20, 21, 22, 23, 24
WIN_FLAVOR = WIN_CREATE_FLAVOR
WIN_FLAVOR_CREATE, WIN_FLAVOR_ALLOCATE, WIN_FLAVOR_DYNAMIC, WIN_FLAVOR_SHARED = 1, 2, 3, 4
WIN_SEPARATE, WIN_UNIFIED = 1, 2
_EMPTY = np.zeros(0, np.uint8)


class _Window(_core.RmaState):
    """State that all handles of a window share."""

    def __init__(self, comm: Any, flavor: int, disp_unit: int, info: Any) -> None:
        self.comm, self.flavor, self.disp_unit = comm, flavor, disp_unit
        self.memory: np.ndarray = _EMPTY
        self.keep: Any = None  # owner of the memory
        self.segment: windows.Segment | None = None
        self.units = []
        self.sizes: list[int | None] = []  # of the parts, by rank; None: dynamic
        self.address = self.size = 0
        self.attached: dict[int, Any] = {}
        self.name = ""
        self.info = dict(info or {})
        self.attributes: dict[int, Any] = {}
        self.epochs = Epochs()

    def open(self, memory: Any, address: int, nbytes: int, dynamic: bool = False) -> None:
        """Register this rank's part and exchange its description. Collective."""
        service = windows.service_of(self.comm)
        self.core = _core.RmaWindow(service, self.comm.number, memory, 0, nbytes, dynamic)
        self.address, self.size = address, nbytes
        gathered = self.comm.allgather((self.core.card, self.disp_unit, None if dynamic else nbytes))
        self.core.join([card for card, _, _ in gathered])
        self.units = [unit for _, unit, _ in gathered]
        self.sizes = [size for _, _, size in gathered]

    def flush(self, target: int) -> None:
        """Complete the operations to a rank; -1: to every rank."""
        try:
            self.core.flush(target)
        except Exception as problem:
            raise self.explained(problem) from None

    @staticmethod
    def explained(problem: Exception) -> Exception:
        """Return the error of a flush under MPI's name."""
        if problem.error_class == CLASSES["ERR_ARG"]:  # the target has refused an operation
            return error("ERR_RMA_RANGE", problem.text)
        return problem


class Win(Handle, Access, Synchronisation, HasAttributes, HasErrhandler, _core.RmaAccess):
    """Window: memory that the ranks of a communicator let each other access. ``MPI.Win``.

    Without an argument the constructor returns a null window; with a window it returns another handle of it.
    """

    _family = "Win"
    _kind_of_keys = _kind_of_handlers = "Win"
    _null_class = "ERR_WIN"

    def __repr__(self) -> str:
        return f"<viakit MPI.Win {self.Get_name()!r}>"

    def _window(self) -> _Window:
        if self._ref is None or self._ref.core is None:
            raise error(
                "ERR_WIN", "this window is WIN_NULL or has been freed; create one with Win.Create or Win.Allocate"
            )
        return self._ref

    # ------------------------------------------------------------ creation

    @classmethod
    def _make(cls, comm: Any, flavor: int, disp_unit: int, info: Any) -> tuple[Self, _Window]:
        if not comm or comm.Is_inter():
            raise error("ERR_COMM", "a window needs an intracommunicator, such as MPI.COMM_WORLD")
        if int(disp_unit) < 1:
            raise error("ERR_DISP", f"the unit of displacements must be 1 byte or more, got {disp_unit}")
        own = comm._dup()  # so that the program may free its communicator first
        ref = _Window(own, flavor, int(disp_unit), info)
        return cls._of(ref), ref

    @classmethod
    def Create(cls, memory: Any, disp_unit: int = 1, info: Any = None, comm: Any = None) -> Self:
        """Create a window of memory that exists. Collective.

        Parameters
        ----------
        memory : writable buffer, None or BOTTOM
            Memory of this rank. None and BOTTOM stand for none.
        disp_unit : int
            Bytes in one unit of displacements on this rank.
        info : Info, optional
            Hints. viakit stores them and acts on none.
        comm : Comm, optional
            Ranks of the window. Default: COMM_SELF.

        Returns
        -------
        Win

        Raises
        ------
        Exception
            ERR_COMM or ERR_DISP for a wrong argument.
        BufferError
            If the memory is not writable or not contiguous.
        """
        view = _EMPTY if memory is None or memory is BOTTOM else simple([memory, None, None], True).memory
        made, ref = cls._make(_comm_or_self(comm), WIN_FLAVOR_CREATE, disp_unit, info)
        ref.memory, ref.keep = view, memory
        ref.open(view if view.size else None, view.ctypes.data if view.size else 0, view.size)
        return made

    @classmethod
    def Allocate(cls, size: int, disp_unit: int = 1, info: Any = None, comm: Any = None) -> Self:
        """Allocate memory and create a window of it. Collective.

        Ranks of the same host write to such memory directly, over via and bip.

        Parameters
        ----------
        size : int
            Bytes of this rank's part.
        disp_unit, info, comm
            As in `Create`.
        """
        size = _size(size)
        made, ref = cls._make(_comm_or_self(comm), WIN_FLAVOR_ALLOCATE, disp_unit, info)
        memory = _core.RmaMemory.allocate(windows.service_of(ref.comm).world, max(size, 1))
        ref.keep = memory
        ref.memory = windows.bytes_of(memory)[:size]
        ref.open(ref.memory if size else None, memory.address, size)
        return made

    @classmethod
    def Allocate_shared(cls, size: int, disp_unit: int = 1, info: Any = None, comm: Any = None) -> Self:
        """Allocate memory that all ranks of *comm* map, and create a window of it. Collective.

        Parameters
        ----------
        size : int
            Bytes of this rank's part. The parts follow each other, each at a multiple of 16 bytes, or on pages of their
            own with the hint ``alloc_shared_noncontig=true``.
        disp_unit, info, comm
            As in `Create`. The ranks must be on one host (`Comm.Split_type`).

        Raises
        ------
        Exception
            ERR_RMA_SHARED if the ranks cannot share memory.
        """
        size = _size(size)
        made, ref = cls._make(_comm_or_self(comm), WIN_FLAVOR_SHARED, disp_unit, info)
        apart = str((info or {}).get("alloc_shared_noncontig", "")).lower() == "true"
        try:
            ref.segment = segment = windows.share(ref.comm, size, apart)
        except BaseException:
            ref.comm.Free()
            raise
        mine = ref.comm.rank
        ref.memory = segment.part(mine)
        first = segment.memory.address + segment.starts[mine] if segment.memory is not None else 0
        ref.open(ref.memory if size else None, first, size)
        for rank, start in enumerate(segment.starts):
            if rank != mine and segment.memory is not None and segment.lengths[rank]:
                ref.core.map_rank(rank, segment.memory, start)
        return made

    @classmethod
    def Create_dynamic(cls, info: Any = None, comm: Any = None) -> Self:
        """Create a window without memory, to which each rank attaches memory. Collective.

        Displacements are addresses (`MPI.Get_address`). Operations on such a window are active messages.
        """
        made, ref = cls._make(_comm_or_self(comm), WIN_FLAVOR_DYNAMIC, 1, info)
        ref.open(None, 0, 0, True)
        return made

    def Attach(self, memory: Any) -> None:
        """Attach memory of this rank to a dynamic window.

        Raises
        ------
        Exception
            ERR_RMA_FLAVOR if the window is not dynamic, ERR_RMA_ATTACH if the memory is attached already.
        """
        ref = self._dynamic()
        view = simple([memory, None, None], True).memory
        address = view.ctypes.data
        if address in ref.attached:
            raise error("ERR_RMA_ATTACH", "this memory is attached already; detach it first")
        ref.core.attach(address, view.size)
        ref.attached[address] = (view, memory)

    def Detach(self, memory: Any) -> None:
        """Detach memory from a dynamic window.

        Raises
        ------
        Exception
            ERR_RMA_FLAVOR if the window is not dynamic, ERR_RMA_ATTACH if the memory is not attached.
        """
        ref = self._dynamic()
        address = simple([memory, None, None], True).memory.ctypes.data
        if ref.attached.pop(address, None) is None:
            raise error("ERR_RMA_ATTACH", "this memory is not attached to the window")
        ref.core.detach(address)

    def _dynamic(self) -> _Window:
        ref = self._window()
        if ref.flavor != WIN_FLAVOR_DYNAMIC:
            raise error("ERR_RMA_FLAVOR", "memory can be attached to windows of Win.Create_dynamic only")
        return ref

    def Free(self) -> None:
        """Free the window. Collective. All operations must be complete.

        Raises
        ------
        Exception
            ERR_RMA_SYNC if this rank has an epoch that it has not ended. ERR_WIN if the window has been freed.
        """
        ref = self._window()
        ref.epochs.check_none()
        ref.flush(-1)
        ref.comm.Barrier()
        self._delete_attributes()
        ref.core.close()
        ref.core = None
        ref.comm.Free()
        ref.memory, ref.keep = _EMPTY, None
        forget(self._family, ref)
        self._ref = None

    def free(self) -> None:
        """Free the window unless the handle is null."""
        if self._ref is not None:
            self.Free()

    # ------------------------------------------------------------ properties

    def _attribute_values(self) -> dict[int, Any]:
        values: dict[int, Any] = self._window().attributes
        return values

    def _predefined_attribute(self, keyval: int) -> Any:
        ref = self._window()
        return {
            WIN_BASE: ref.address,
            WIN_SIZE: ref.size,
            WIN_DISP_UNIT: ref.disp_unit,
            WIN_CREATE_FLAVOR: ref.flavor,
            WIN_MODEL: WIN_UNIFIED,
        }.get(keyval)

    @property
    def attrs(self) -> tuple[int, int, int]:
        """Base address, size in bytes and displacement unit of this rank's part."""
        ref = self._window()
        return (ref.address, ref.size, ref.disp_unit)

    @property
    def flavor(self) -> int:
        """How the window was created: WIN_FLAVOR_CREATE, ALLOCATE, SHARED or DYNAMIC."""
        return self._window().flavor

    @property
    def model(self) -> int:
        """Memory model: always WIN_UNIFIED."""
        self._window()
        return WIN_UNIFIED

    def tomemory(self) -> Any:
        """Return this rank's part as a buffer of bytes."""
        return _view(self._window().memory)

    def Shared_query(self, rank: int) -> tuple[Any, int]:
        """Return a rank's part and its displacement unit.

        Parameters
        ----------
        rank : int
            Rank, or PROC_NULL for the first rank whose part is not empty.

        Returns
        -------
        memory : buffer
            Bytes of the part. Empty if this process cannot access them: only windows of `Allocate_shared` are mapped.
        disp_unit : int
        """
        ref = self._window()
        segment = ref.segment
        if segment is None:
            mine = rank == ref.comm.rank and ref.flavor != WIN_FLAVOR_DYNAMIC
            return (_view(ref.memory if mine else _EMPTY), ref.disp_unit)
        if rank == PROC_NULL:
            rank = next((i for i, n in enumerate(segment.lengths) if n), 0)
        self._check_rank(ref, rank)
        return (_view(segment.part(rank)), ref.units[rank])

    def counters(self) -> dict[str, int]:
        """Return the counters of the engine that serves this window, and others of the same ranks, by name.

        ``puts`` and ``gets`` count RDMA writes and reads that this rank began, ``active_sent`` and ``active_received``
        active messages. The counters of the engine's NICs follow, such as ``nic_bytes_copied``: the engine does not
        count what a NIC copies. mpi4py has no such method.
        """
        world = self._window().core.service.world
        found: dict[str, int] = world.counters()
        return found | {f"nic_{name}": value for name, value in world.nic_counters().items()}

    def Get_group(self) -> Group:
        """Return the group of the window's ranks."""
        return self._window().comm.Get_group()

    @property
    def group(self) -> Group:
        """Group of the window's ranks."""
        return self.Get_group()

    @property
    def group_size(self) -> int:
        """Number of ranks in the window."""
        return self._window().comm.size

    @property
    def group_rank(self) -> int:
        """Rank of this process in the window."""
        return self._window().comm.rank

    def Get_info(self) -> Info:
        """Return a copy of the window's hints."""
        return Info.Create(self._window().info)

    def Set_info(self, info: Any) -> None:
        """Set the window's hints. viakit acts on none."""
        self._window().info = dict(info or {})

    info = property(Get_info, Set_info, doc="Hints of the window. viakit acts on none of them.")

    def Get_name(self) -> str:
        """Return the name of the window."""
        return "MPI_WIN_NULL" if self._ref is None else str(self._ref.name)

    def Set_name(self, name: str) -> None:
        """Set the name of the window."""
        self._window().name = str(name)

    name = property(Get_name, Set_name, doc="Name of the window.")

    # ------------------------------------------------------------ checks

    @staticmethod
    def _check_rank(ref: _Window, rank: int) -> None:
        if not 0 <= rank < ref.comm.size:
            raise error("ERR_RANK", f"target rank {rank}: this window has {counted(ref.comm.size, 'rank')}, from 0 on")

    def _access(self, rank: int) -> _Window:
        ref = self._window()
        self._check_rank(ref, rank)
        ref.epochs.check_access(rank)
        return ref


WIN_NULL = Win()


def _size(size: int) -> int:
    size = int(size)
    if size < 0:
        raise error("ERR_SIZE", f"the size of a window must be 0 or more bytes, got {size}")
    return size


def _comm_or_self(comm: Any) -> Any:
    if comm is not None:
        return comm
    from viakit import comm as worlds  # start-up time

    return worlds.self_of(worlds.world())


def _view(memory: np.ndarray) -> Buffer:
    """Return memory as a buffer of bytes, which keeps the memory alive. Without bytes its address is 0."""
    return Buffer(memory) if memory.size else Buffer()
