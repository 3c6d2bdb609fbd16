# SPDX-License-Identifier: Apache-2.0
"""The device side over epochs, faults, processes, and host batches that trainers copy; with the stand-in for CUDA."""
import gc
import os
import threading
import time
import warnings

import common
import harness
import reader
import stoker
from common import ids
from device_case import DeviceCase, Torch, order


class Flow(DeviceCase):
    def test_a_break_goes_on_with_the_next_batch_and_states_are_of_what_was_returned(self):
        want = self.on_host()
        l = self.loader(device="cuda:0")
        found = []
        for b in l:
            found.append(self.read(b))
            if b.step == 4:
                break
        state = l.state_dict()
        self.assertEqual((state["epoch"], state["step"]), (0, 5))
        self.assertEqual(l.state_dict(after=b), state)
        found += [self.read(b) for b in l]
        self.assertEqual(self.seen(found), want)
        self.assertEqual((l.epoch, l.step), (1, 0))
        other = self.loader("other", device="cuda:0", state=state)
        self.assertEqual(self.seen([self.read(b) for b in other]), want[5:])
        l.load_state_dict(state)
        self.assertEqual(self.seen([self.read(b) for b in l]), want[5:])

    def test_epochs_follow_one_another_and_the_stream_ends(self):
        l = self.loader(device="cuda:0", epochs=2)
        host = self.loader("host", epochs=2)
        for epoch in range(3):
            want = [(b.epoch, b.step, ids(b), {n: bytes(memoryview(t)) for n, t in b.items()}) for b in host]
            self.assertEqual(self.seen([self.read(b) for b in l]), want)
            self.assertEqual(bool(want), epoch < 2)

    def test_evaluation_begins_anew_each_time(self):
        l = stoker.eval_loader(self.data, rows=8, as_="dlpack", daemon="system", socket=self.d.socket, job="job",
                               device="cuda:0")
        self.loaders.append(l)
        next(iter(l))
        for _ in range(2):
            found = [self.read(b) for b in l]
            self.assertEqual(sorted(i for _, _, samples, _ in found for i in samples), list(range(200)))

    def test_a_killed_daemon_costs_no_batch_and_none_comes_twice(self):
        want = self.on_host()
        reader.delay(500)
        l = self.loader(device="cuda:0", reconnect=20)
        it, found = iter(l), []
        for _ in range(9):
            found.append(self.read(next(it)))
        held = next(it)
        self.d.kill()
        self.d.start()
        found.append(self.read(held))
        del held
        found += [self.read(b) for b in it]
        self.assertEqual(self.seen(found), want)
        self.assertEqual(l.stats()["page_locked"], 1)

    def test_a_daemon_that_stays_away_is_an_error_of_the_connection(self):
        l = self.loader(device="cuda:0", reconnect=0)
        it = iter(l)
        next(it)
        self.d.kill()
        with self.assertRaises(stoker.Disconnected):
            for _ in it:
                pass

    def test_batches_outlive_their_loader(self):
        l = self.loader(device="cuda:0")
        it = iter(l)
        b, other = next(it), next(it)
        want = self.on_host()[0]
        l.close()
        del l, it, other
        self.assertEqual(self.seen([self.read(b)]), [want])
        with self.assertRaises(stoker.Error):
            next(iter(self.loaders[0]))

    def test_who_holds_every_device_slot_is_warned_and_then_refused(self):
        l = self.loader(device="cuda:0", depth=2, timeout=1.3)
        it = iter(l)
        held = [next(it), next(it)]
        with self.assertWarns(stoker.SlotsHeldWarning) as warned, self.assertRaises(stoker.Timeout):
            next(it)
        self.assertIn("2 of 2 device slots", str(warned.warning))
        self.assertIn("depth", str(warned.warning))
        held.pop()
        next(it)

    def test_a_cycle_that_holds_the_device_slots_is_collected(self):
        l = self.loader(device="cuda:0", depth=1)
        it = iter(l)
        cycle = [next(it)]
        cycle.append(cycle)
        gc.disable()
        self.addCleanup(gc.enable)
        del cycle
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            next(it)

    def test_a_batch_that_comes_while_one_waits_is_taken_by_another_thread(self):
        l = self.loader(device="cuda:0", depth=8, epochs=1)
        found, lock = [], threading.Lock()
        def consume():
            stream = reader.stream()
            for b in l:
                got = b.epoch, b.step, ids(b), {n: t.read(stream) for n, t in order(b, stream).items()}
                with lock:
                    found.append(got)
                del b
            reader.destroy(stream)
        threads = [threading.Thread(target=consume) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(self.seen(sorted(found, key=lambda f: f[1])), self.on_host())


class Faults(DeviceCase):
    def test_an_error_of_cuda_is_named_and_nothing_is_lost(self):
        want = self.on_host()
        l = self.loader(device="cuda:0")
        it, found = iter(l), []
        for name in "MemcpyAsync", "EventRecord":
            for _ in range(4):
                found.append(self.read(next(it)))
            reader.sync(self.stream)
            reader.fail("cuda" + name, 1, 1000, 700)
            with self.assertRaises(stoker.DeviceError) as caught:
                for _ in range(5):
                    found.append(self.read(next(it)))
            self.assertIsInstance(caught.exception, RuntimeError)
            self.assertIn(f"cuda{name}: cudaErrorIllegalAddress", str(caught.exception))
            self.assertIn("epoch 0 step", str(caught.exception))
            reader.fail("cuda" + name, 1, 0, 0)
            self.assertEqual(reader.figures()["last_error"], 0)
        found += [self.read(b) for b in it]
        self.assertEqual(self.seen(found), want)

    def test_a_stream_that_cannot_wait_is_an_error_of_the_consumer(self):
        b = next(iter(self.loader(device="cuda:0")))
        reader.fail("cudaStreamWaitEvent", 1, 1, 400)
        with self.assertRaises(stoker.DeviceError) as caught:
            b["input_ids"].__dlpack__(stream=self.stream)
        self.assertIn("cudaStreamWaitEvent: cudaErrorInvalidResourceHandle", str(caught.exception))
        b["input_ids"].__dlpack__(stream=self.stream)

    def test_memory_that_cannot_be_page_locked_costs_one_warning_and_no_byte(self):
        want = self.on_host()
        for code, name in ((801, "cudaErrorNotSupported"), (2, "cudaErrorMemoryAllocation")):
            reader.fail("cudaHostRegister", 1, 1000, code)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                l = self.loader(f"job-{code}", device="cuda:0")
                found = [self.read(b) for b in l]
            self.assertEqual(self.seen(found), want)
            self.assertEqual([w.category for w in said], [RuntimeWarning])
            self.assertIn(name, str(said[0].message))
            self.assertEqual(l.stats()["page_locked"], 0)
            self.assertEqual(reader.figures()["last_error"], 0)
            l.close()
        reader.fail("cudaHostRegister", 1, 0, 0)

    def test_what_opening_needs_and_does_not_get_is_named(self):
        for name, code in (("cudaMalloc", 2), ("cudaStreamCreateWithFlags", 700), ("cudaEventCreateWithFlags", 700)):
            reader.fail(name, 1, 1, code)
            with self.assertRaises(stoker.DeviceError) as caught:
                self.loader(device="cuda:0")
            self.assertIn(name + ": cudaError", str(caught.exception))
            self.assertEqual(reader.figures()["registered"], 0)

    def test_a_device_that_is_not_there_is_refused_with_how_many_there_are(self):
        with self.assertRaises(stoker.DeviceError) as caught:
            self.loader(device="cuda:7")
        self.assertIn("device 7: there are 2", str(caught.exception))

    def attach(self, device, **env):
        s = self.script(f"""
import warnings
warnings.simplefilter("always")
try:
    l = loader(device={device!r}, epochs=1)
    n = sum(1 for b in l)
    print(l.device, n)
except stoker.Error as e:
    print(type(e).__name__, e)
""", env=env)
        status, out, said = s.end()
        self.assertEqual(status, 0, said)
        return out, said

    def test_without_a_device_a_trainer_that_wants_one_does_not_start(self):
        for device in "cuda", "cuda:0":
            out, said = self.attach(device, STANDIN_DEVICES="0")
            self.assertEqual(out.split(":")[0], "DeviceError CUDA")
            self.assertIn("cudaErrorNoDevice", out)

    def test_without_a_device_auto_is_the_host_and_one_warning(self):
        out, said = self.attach("auto", STANDIN_DEVICES="0")
        self.assertEqual(out.split(), ["cpu", str(len(self.on_host()))])
        self.assertEqual(said.count("RuntimeWarning"), 1, said)
        self.assertIn("cudaErrorNoDevice", said)
        self.assertEqual(self.attach("auto"), (f"cuda:0 {len(self.on_host())}\n", ""))

    def test_a_runtime_that_pip_installed_is_found(self):
        folder = self.path("site/nvidia/cuda_runtime/lib")
        os.makedirs(folder)
        os.symlink(os.path.join(os.environ["STANDIN_13"], "libcudart.so.13"), folder + "/libcudart.so.13")
        paths = [p for p in os.environ["LD_LIBRARY_PATH"].split(":") if p != os.environ["STANDIN_13"]]
        out, said = self.attach("cuda:1", LD_LIBRARY_PATH=":".join(paths),
                                PYTHONPATH=self.path("site") + ":" + os.environ["PYTHONPATH"])
        self.assertEqual(out, f"cuda:1 {len(self.on_host())}\n", said)

    def test_the_older_runtime_serves_as_well(self):
        path = os.environ["LD_LIBRARY_PATH"].replace(os.environ["STANDIN_13"], os.environ["STANDIN_12"])
        out, said = self.attach("cuda:1", LD_LIBRARY_PATH=path)
        self.assertEqual(out, f"cuda:1 {len(self.on_host())}\n", said)

    @common.needs_torch
    def test_a_torch_without_cuda_is_no_consumer_of_device_batches(self):
        if common.torch.version.cuda:
            self.skipTest("this torch has CUDA")
        for options in {"device": "cuda"}, {"pin": True}:
            with self.assertRaises(stoker.DeviceError) as caught:
                self.loader(as_="torch", **options)
            self.assertIn("built without CUDA", str(caught.exception))
        with self.assertWarns(RuntimeWarning) as warned:
            l = self.loader(as_="torch", device="auto")
        self.assertEqual((l.device, next(iter(l))["input_ids"].device.type), ("cpu", "cpu"))
        self.assertIn("built without CUDA", str(warned.warning))

    def test_without_the_library_it_is_named_and_the_host_works(self):
        os.makedirs(self.path("lib"))
        path = self.path("lib") + ":" + os.environ.get("LD_LIBRARY_PATH", "")
        with open(self.path("lib/libstoker-cuda.so.0"), "w") as f:
            f.write("no library")
        out, _ = self.attach("cuda", LD_LIBRARY_PATH=path)
        self.assertIn("DeviceError libstoker-cuda cannot be loaded: ", out)
        self.assertEqual(self.attach(None, LD_LIBRARY_PATH=path)[0].split()[0], "cpu")
        os.remove(self.path("lib/libstoker-cuda.so.0"))
        os.symlink(os.path.join(os.environ["STANDIN_13"], "libcudart.so.13"), self.path("lib/libstoker-cuda.so.0"))
        out, _ = self.attach("cuda", LD_LIBRARY_PATH=path)
        self.assertIn("libstoker-cuda.so.0 is of another release: it has no stk_cuda_", out)


class Pinned(DeviceCase):
    """Host batches in page-locked memory, copied by the trainer."""

    def test_a_batch_goes_back_when_its_stream_is_done_and_not_before(self):
        want = self.on_host()
        self.torch()
        l = self.loader(as_="torch", pin=True, prefetch=2, default_fields="stored")
        it, found = iter(l), []
        for n in range(len(want)):
            b = next(it)
            self.assertEqual(b["input_ids"].device.type, "cpu")
            # a copy that the trainer queues: it reads late, and the tensors are dropped at once
            found.append((b.epoch, b.step, want[n][2], {k: t.taken.read(self.stream, 3000) for k, t in b.items()}))
            del b
        self.assertEqual(self.seen(found), want)
        self.assertEqual(l.stats()["page_locked"], 1)
        self.assertEqual(l.device, "cpu")
        self.assertEqual(reader.calls("cudaDeviceSynchronize"), 0)
        self.assertEqual(reader.calls("cudaMalloc"), 0)

    def test_streams_that_are_named_are_waited_for(self):
        want = self.on_host()
        side = reader.stream()
        self.addCleanup(reader.destroy, side)
        l = self.loader(pin="cuda:0", prefetch=2)
        found = []
        for b in l:
            tensors = {n: reader.take(t.__dlpack__()) for n, t in b.items()}
            b.record_stream(side)
            found.append((b.epoch, b.step, ids(b), {n: t.read(side, 3000) for n, t in tensors.items()}))
            del b, tensors
        reader.sync(side)
        self.assertEqual(self.seen(found), want)

    def test_to_keeps_the_batch_until_its_copies_are_made(self):
        for pin in True, False:
            torch = self.torch()
            l = self.loader(f"job-{pin}", as_="torch", pin=pin, prefetch=2)
            b = next(iter(l))
            Torch.gated = True
            moved = b.to("cuda:0", non_blocking=True)
            self.assertEqual({t.device.type for t in moved.values()}, {"cuda"})
            self.assertEqual((moved.step, moved.rows, moved.state), (b.step, b.rows, b.state))
            del b
            self.assertEqual(len(stoker._device._in_flight), 0 if pin else 1)
            self.assertTrue(pin or l.stats()["slots_held"] == 1)
            for _ in Torch.reads:
                reader.open_gate()
            reader.sync(self.stream)
            stoker._device.reap()
            self.assertEqual(l.stats()["slots_held"], 0)
            moved.record_stream(torch.current_stream("cuda:0"))  # its memory is torch's own
            self.assertEqual(len(moved["input_ids"].recorded), 1)
            Torch.reads.clear()
            l.close()

    def test_copies_that_are_not_made_yet_do_not_stop_a_loader_for_ever(self):
        self.torch()
        l = self.loader(as_="torch", prefetch=2, timeout=5)
        it = iter(l)
        Torch.gated = True
        for _ in range(2):
            next(it).to("cuda:0", non_blocking=True)
        def release():
            time.sleep(0.3)
            for _ in Torch.reads:
                reader.open_gate()
        thread = threading.Thread(target=release)
        thread.start()
        b = next(it)
        thread.join()
        self.assertEqual(b.step, 2)
        Torch.gated = False

    def test_a_copy_to_another_device_is_waited_for_there(self):
        self.torch()
        reader.set_device(1)
        Torch.streams[1] = reader.stream()
        reader.set_device(0)
        l = self.loader(as_="torch", pin="cuda:0", prefetch=2)
        b = next(iter(l))
        b.to("cuda:1", non_blocking=True)
        del b
        self.assertEqual(len(stoker._device._in_flight), 1)
        reader.sync(Torch.streams[1])
        stoker._device.reap()
        self.assertEqual(l.stats()["slots_held"], 0)
        reader.destroy(Torch.streams[1])

    def test_batches_outlive_their_loader(self):
        want = self.on_host()[0][3]
        self.torch()
        l = self.loader(as_="torch", pin=True, default_fields="stored")
        b = next(iter(l))
        l.close()
        self.assertGreater(reader.figures()["registered"], 0)
        reads = {n: t.taken.read(self.stream, 5000) for n, t in b.items()}
        del b
        self.assertEqual({n: r.bytes for n, r in reads.items()}, want)
        self.assertEqual(reader.figures()["registered"], 0)

    def test_memory_that_cannot_be_page_locked_is_told_once(self):
        want = self.on_host()
        reader.fail("cudaHostRegister", 1, 1000, 1)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            l = self.loader(pin=True)
            found = [(b.epoch, b.step, ids(b), {n: bytes(memoryview(t)) for n, t in b.items()}) for b in l]
        reader.fail("cudaHostRegister", 1, 0, 0)
        self.assertEqual(found, want)
        self.assertEqual(len(said), 1)
        self.assertIn("cudaErrorInvalidValue", str(said[0].message))
        self.assertEqual(l.stats()["page_locked"], 0)

    def test_state_and_break_are_those_of_a_host_loader(self):
        want = self.on_host()
        l = self.loader(pin=True)
        for b in l:
            if b.step == 6:
                break
        state = l.state_dict()
        self.assertEqual(ids(next(iter(l))), want[7][2])
        l.load_state_dict(state)
        self.assertEqual(ids(next(iter(l))), want[7][2])


class Processes(DeviceCase):
    EXITS = {
        "a loader and its batches at the end of the process": "keep = [b for b, _ in zip(l, range(2))]",
        "a loop that is left by an exception": "for b in l:\n    raise SystemExit(0)",
        "a cycle": "b = next(iter(l)); c = [l, b]; c.append(c); del l, b, c",
        "a tensor that outlives all": "import builtins; builtins.kept = reader.take(next(iter(l))['input_ids']"
                                      ".__dlpack__(stream=1)); del l",
        "a thread in the middle of a wait": "threading.Thread(target=lambda: [None for b in l], daemon=True).start();"
                                            " time.sleep(0.1)",
    }

    def test_a_process_may_end_at_any_time(self):
        for what, code in self.EXITS.items():
            for kind in "device='cuda:0'", "pin=True":
                if "kept" in code and "pin" in kind:
                    continue
                s = self.script(f"import reader\nl = loader({kind}, epochs=1000)\n{code}\n")
                status, out, said = s.end()
                self.assertEqual((status, out, said), (0, "", ""), f"{what}, {kind}")

    def test_a_killed_trainer_leaves_the_daemon_as_it_was(self):
        s = self.script("l = loader(device='cuda:0')\nb = next(iter(l))\nprint('ready', flush=True)\ntime.sleep(60)\n",
                        env={"STANDIN_DELAY_US": "1000"})
        self.assertEqual(s.line(), "ready")
        s.process.kill()
        s.process.wait(harness.SLOW)
        self.d.wait_idle()
        self.assertGreater(len(self.on_host()), 0)

    def test_a_forked_child_is_told_and_the_parent_goes_on(self):
        for kind in "device='cuda:0'", "pin=True":
            s = self.script(f"""
import gc
l = loader({kind}, epochs=1)
it = iter(l)
b = next(it)
t = b["input_ids"]
capsule = t.__dlpack__(stream=1) if "device" in {kind!r} else t.__dlpack__()
pid = os.fork()
if not pid:
    status = 9
    for call in (lambda: next(it), l.state_dict, lambda: l.load_state_dict(None),
                 lambda: b.record_stream(7) if "device" in {kind!r} else l.why()):
        try:
            call()
            os._exit(status)
        except stoker.ForkedError:
            pass
        status += 1
    l.close()
    del capsule, t, b, it, l, call
    gc.collect()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
del capsule, t, b
print(1 + sum(1 for b in it))
""")
            status, out, said = s.end()
            self.assertEqual((status, said), (0, ""))
            self.assertEqual(out.split(), ["0", str(len(self.on_host()))])


if __name__ == "__main__":
    common.main()
