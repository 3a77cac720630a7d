# Short objects as messages: the paths of send and recv whose overhead matters. viakit.comm.objects has the format of
# the messages, and the general paths.

cdef enum:
    SHORT_OBJECT = 16384    # bytes of a pickle that is one message: SHORT of viakit.comm.objects
    LARGE_BUFFER = 16384    # bytes from which a buffer travels outside the pickle
    MOST_BUFFERS = 1000     # outside of one pickle

cdef object _dumps = None, _loads = None, _pickling = None


def set_pickling(dumps, loads, pickling):
    """Register pickle's functions, and the object `MPI.pickle`. :mod:`viakit.comm` calls it once."""
    global _dumps, _loads, _pickling
    _dumps, _loads, _pickling = dumps, loads, pickling


cdef class OutOfBand:
    """Callback of one call to pickle: it keeps the large buffers that can be received into their new place."""

    cdef public list buffers

    def __cinit__(self):
        self.buffers = []

    def __call__(self, buffer):
        """Return False if pickle has to leave the buffer out."""
        try:
            raw = buffer.raw()
        except BufferError:
            return True         # not contiguous: pickled as usual
        if raw.nbytes < LARGE_BUFFER or raw.readonly or len(self.buffers) >= MOST_BUFFERS:
            return True
        self.buffers.append(raw)
        return False


cdef class ObjectComm(MsgComm):
    """Messages with pickled objects."""

    cdef bint _is_simple(self) except -1:
        """Return whether short objects are plain pickles, and no schedule needs progress while a call waits."""
        return (self._s is not _null_state and self.world.n_active == 0 and _pickling.plain
                and self.world.seal is None)

    def send(self, obj, int dest, int tag=0):
        """Send an object that can be pickled.

        Parameters
        ----------
        obj : object
            Any object that the pickler accepts.
        dest : int
            Destination rank.
        tag : int
            Message tag.
        """
        cdef OutOfBand outside
        cdef Py_buffer view
        cdef char[MOST_COMPACT] room
        if not self._is_simple():
            self._send_object(obj, dest, tag, MSG_STANDARD)
            return
        memset(&view, 0, sizeof(view))
        view.buf, view.len = room, _compact(obj, room)
        if view.len:
            self._send_fast(&view, dest, tag, MSG_STANDARD)
            return
        outside = OutOfBand.__new__(OutOfBand)
        data = _dumps(obj, protocol=5, buffer_callback=outside)
        if outside.buffers or len(data) > SHORT_OBJECT or self.world.n_active:
            self._send_dumped(data, outside.buffers, dest, tag, MSG_STANDARD)
            return
        PyObject_GetBuffer(data, &view, PyBUF_ANY_CONTIGUOUS)
        self._send_fast(&view, dest, tag, MSG_STANDARD)

    def recv(self, buf=None, int source=MSG_ANY_SOURCE, int tag=MSG_ANY_TAG, MsgStatus status=None):
        """Receive an object.

        Parameters
        ----------
        buf : object, optional
            Ignored with a warning, as in mpi4py 4: the receiver need not know the length.
        source, tag : int
            Source rank or ANY_SOURCE, and tag or ANY_TAG.
        status : Status, optional
            Filled with the source and tag of the message.

        Returns
        -------
        object
            The object received.
        """
        cdef bytearray room
        cdef msg_status result
        cdef list spare
        if buf is not None or not self._is_simple():
            return self._recv_object(buf, source, tag, status)
        spare = self._s.spare
        room = <bytearray>spare.pop() if spare else bytearray(SHORT_OBJECT)
        self._recv_fast(PyByteArray_AS_STRING(room), SHORT_OBJECT, source, tag, &result)
        if status is not None:
            self._report(&result, status)
        if result.source < 0 or result.len == 0:
            obj = None
        elif room[0] == c"C":
            obj = _expanded(PyByteArray_AS_STRING(room), result.len)
        elif room[0] == c"V":
            obj = self._recv_parts(memoryview(room)[:result.len], self._back(result.source))
        else:
            obj = _loads(room)  # stops at the end of the pickle; bytes of earlier messages behind it are ignored
        spare.append(room)
        return obj
