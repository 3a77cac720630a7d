"""``MPI.File``: the names of MPI-IO. viakit does not offer MPI-IO, and each call raises an error that states it."""

from __future__ import annotations

from typing import Any

from viakit.comm.errhandler import HasErrhandler
from viakit.comm.errors import error
from viakit.comm.handle import Handle

__all__ = ["FILE_NULL", "File", "Register_datarep"]

_CALLS = """
Delete Set_size Preallocate Get_size Get_amode Get_group Set_info Get_info Set_view Get_view
Read_at Read_at_all Write_at Write_at_all Iread_at Iread_at_all Iwrite_at Iwrite_at_all
Read Read_all Write Write_all Iread Iread_all Iwrite Iwrite_all Seek Get_position Get_byte_offset
Read_shared Write_shared Iread_shared Iwrite_shared Read_ordered Write_ordered Seek_shared Get_position_shared
Read_at_all_begin Read_at_all_end Write_at_all_begin Write_at_all_end Read_all_begin Read_all_end Write_all_begin
Write_all_end Read_ordered_begin Read_ordered_end Write_ordered_begin Write_ordered_end
Get_type_extent Set_atomicity Get_atomicity Sync
""".split()


def _not_offered(name: str) -> NotImplementedError:
    return NotImplementedError(
        f"{name}: viakit does not offer MPI-IO; let each rank open a file of its own, or gather the data and write it "
        "on one rank (numpy.save, h5py)"
    )


class File(Handle, HasErrhandler):
    """File of MPI-IO: ``MPI.File``. Only null handles exist, because viakit does not offer MPI-IO."""

    _family = "File"
    _kind_of_handlers, _null_class = "File", "ERR_FILE"

    @classmethod
    def Open(cls, comm: Any, filename: Any, amode: int = 2, info: Any = None) -> File:
        """Raise NotImplementedError: viakit does not offer MPI-IO."""
        raise _not_offered("File.Open")

    def Close(self) -> None:
        """Raise ERR_FILE: no file is open, because viakit does not offer MPI-IO."""
        raise error("ERR_FILE", "this File is null; viakit does not offer MPI-IO")

    def free(self) -> None:
        """Do nothing: the handle is null."""

    @property
    def name(self) -> str:
        """Name of the file; empty, because no file is open."""
        return ""


def _add_calls() -> None:
    for name in _CALLS:

        def call(self: File, *args: Any, _name: str = name, **kwargs: Any) -> Any:
            raise _not_offered(f"File.{_name}")

        call.__name__, call.__qualname__ = name, f"File.{name}"
        call.__doc__ = "Raise NotImplementedError: viakit does not offer MPI-IO."
        setattr(File, name, call)


_add_calls()
FILE_NULL = File()


def Register_datarep(datarep: str, read_fn: Any, write_fn: Any, extent_fn: Any) -> None:
    """Raise NotImplementedError: viakit does not offer MPI-IO."""
    raise _not_offered("Register_datarep")
