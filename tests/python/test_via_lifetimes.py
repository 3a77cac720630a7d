"""The ends of viakit.via's objects: dropped while open, in garbage cycles, at exit, and after a fork."""

from __future__ import annotations

import gc
import os
import warnings

import pytest
from via_child import in_child

from viakit import via


@pytest.mark.parametrize("kind", ["nic", "vi", "region", "cq", "tag"])
def test_what_is_dropped_open_is_closed_with_a_warning(kind):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nic = via.Nic("loop:dropped")
        make = {
            "nic": lambda: nic,
            "vi": nic.create_vi,
            "region": lambda: nic.register(bytearray(8)),
            "cq": lambda: nic.create_cq(1),
            "tag": nic.create_tag,
        }
        thing = make[kind]()
        del make
        if kind != "nic":
            del thing
            gc.collect()
            assert not any(via.live_objects()[name] for name in ("vis", "cqs"))
            nic.close()
        else:
            del thing, nic
        gc.collect()
    assert [w.category for w in caught] == [ResourceWarning]
    assert os.path.basename(__file__) in str(caught[0].message)
    assert not any(via.live_objects().values())


def test_a_cycle_of_garbage_is_closed():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nic = via.Nic("loop:cycle")
        vi, region = nic.create_vi(), nic.create_region(64)
        vi.post_recv(via.Descriptor.recv(region))
        held = [nic, vi, region]
        nic.on_error = held.append
        del nic, vi, region, held
        gc.collect()
    assert not any(via.live_objects().values())
    assert all(w.category is ResourceWarning for w in caught)


def test_a_cycle_of_a_nic_and_all_that_it_has_prints_nothing():
    """The collector finalizes such a cycle in an arbitrary order. Each object is closed before what it refers to.

    (An array of NumPy would hide the cycle, because the collector does not look into it.)
    """
    result = in_child(
        """
        import gc
        import threading
        import warnings
        from viakit import via

        warnings.simplefilter("ignore", ResourceWarning)

        def make(nic, first):
            cq, other, tag = nic.create_cq(8), nic.create_cq(8), nic.create_tag()
            vis = [nic.create_vi(send_cq=cq, recv_cq=cq) for _ in range(3)] + [nic.create_vi(tag=tag), nic.create_vi()]
            memory = nic.allocate(64)
            regions = [nic.create_region(64), nic.register(memory), nic.register(bytearray(64), tag=tag)]
            for vi in vis[:3]:
                vi.post_recv(via.Descriptor.recv(regions[0]))
            vis[3].post_recv(via.Descriptor.recv(regions[2]))
            accepting = threading.Thread(target=lambda: nic.connect_wait("end", timeout_s=30).accept(vis[1]))
            accepting.start()
            vis[0].connect(nic.address / "end", timeout_s=30, retry=True)
            accepting.join()
            held = [cq, other, tag, vis, regions, memory, memoryview(regions[0])]
            for one in (other.notify, cq.notify, vis[4].recv_notify):
                one(lambda completion: held)
            for vi in vis:
                vi.user_data = held
            nic.on_error = held.append
            held.append(held)
            if first:
                held.reverse()
            return held

        for i in range(6):
            nic = via.Nic(f"loop:cycle{i}")
            held = make(nic, i % 2)
            held.insert(i % 3, nic)
            del nic, held
            gc.collect()
        gc.collect()
        print(sum(via.live_objects().values()))
        with via.Nic("loop:cycle") as nic:              # all but the NIC
            for i in range(6):
                make(nic, i % 2)
            nic.on_error = None
            gc.collect()
            alive = via.live_objects()
            print(alive["vis"], alive["cqs"])
        print(sum(via.live_objects().values()))
        """
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "0\n0 0\n0\n", "")


DAEMONS = {
    "wait": "vi.recv_wait()",
    "spin": "vi.spin_recv()",
    "poll": "vi.recv_done(); nic.poll()",
    "queue": "cq.wait()",
    "entries": "list(cq)",
    "server": "nic.connect_wait('never')",
    "counters": "nic.counters, vi.state",
    "memory": "nic.create_region(64).close()",
    "objects": "nic.create_vi().close()",
}


@pytest.mark.parametrize("call", DAEMONS)
def test_a_daemon_thread_in_a_call_at_exit_says_nothing(call):
    result = in_child(
        f"""
        import threading
        from viakit import via
        nic = via.Nic("shm:daemon")
        cq = nic.create_cq(8)
        vi, with_cq, region = nic.create_vi(), nic.create_vi(recv_cq=cq), nic.create_region(64)
        vi.post_recv(via.Descriptor.recv(region))
        with_cq.post_recv(via.Descriptor.recv(region))
        begun = threading.Semaphore(0)

        def work():
            begun.release()
            while True:
                {DAEMONS[call]}

        for _ in range(2):
            threading.Thread(target=work, daemon=True).start()
            begun.acquire()
        """
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("make", ["allocate", "create_region"])
def test_garbage_with_a_view_of_it_is_closed(make):
    """The collector takes the memory first and then the view, which is what lets go of it."""

    def leave_a_cycle(nic: via.Nic) -> None:
        memory = getattr(nic, make)(4096)
        view = memoryview(memory)
        try:
            view["no index"]
        except TypeError as error:
            kept = error  # noqa: F841 - its traceback has this frame

    nic = via.Nic("loop:view")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        leave_a_cycle(nic)
        gc.collect()
    nic.close()
    del nic
    gc.collect()
    assert not any(via.live_objects().values())


def test_an_interpreter_that_exits_without_closing_says_nothing():
    result = in_child(
        """
        import numpy as np
        from viakit import via
        nic = via.Nic("loop:exit")
        shm = via.Nic("shm:exit")
        vi, region, cq = shm.create_vi(), shm.create_region(100), nic.create_cq(3)
        array = np.asarray(region)
        vi.post_recv(via.Descriptor.recv(region))
        nic.on_error = print
        """
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_call_after_fork_is_an_error_and_a_nic_of_the_childs_own_is_not():
    result = in_child(
        """
        import os
        import numpy as np
        from viakit import errors, via
        nic = via.Nic("loop:fork")
        vi, memory, cq = nic.create_vi(), nic.allocate(64), nic.create_cq(3)
        region = nic.register(memory)
        descriptor = via.Descriptor.send(region)
        child = os.fork()
        if child == 0:
            calls = [lambda: nic.counters, nic.create_vi, lambda: vi.post_send(descriptor), vi.recv_done,
                     lambda: vi.state, lambda: np.asarray(region), cq.done, lambda: memoryview(memory),
                     lambda: via.Descriptor.send(region)]
            for i, call in enumerate(calls):
                try:
                    call()
                except errors.ForkError as error:
                    assert "fork" in str(error)
                else:
                    raise SystemExit(f"call {i} was no error")
            for thing in (vi, region, cq, memory, nic):
                repr(thing)
                thing.close()
            with via.Nic("loop:fork") as own:
                own.poll()
            raise SystemExit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert nic.counters is not None
        assert vi.state is via.ViState.IDLE
        nic.close()
        """
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
