# SPDX-License-Identifier: Apache-2.0
"""Real daemons and trainers on a device, with the stand-in in place of the CUDA runtime."""
import errno
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
import harness  # noqa: E402
from harness import Case, Raw, SLOW, attach_parameters, random_lengths, read_line, wait_until  # noqa: E402

KEYS = ["rows=8", "buckets=4", "epochs=2", "prefetch=4"]
PACKED = ["group=pack", "max_length=128", "flat=true", "tokens=512", "epochs=1", "prefetch=4",
          "fields=[{name: input_ids}, {name: cu, make: cu_seqlens}, {name: longest, make: max_seqlen}]"]


class Devices(Case):
    def setUp(self):
        super().setUp()
        self.data, _ = self.dataset(random_lengths(400))

    def start(self, d, *args, runtime="13", env=None, keys=KEYS, job="job"):
        path = os.environ["STANDIN_%s" % runtime] if runtime else ""
        env = dict(os.environ, LD_LIBRARY_PATH=path, **(env or {}))
        process = subprocess.Popen(
            [os.environ["DEVICE_TRAINER_BIN"], "--socket", d.socket, "--job", job, "--path", self.data,
             *args, *keys], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        self.addCleanup(self.reap, process)
        return process

    def reap(self, process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def finish(self, process, status=0):
        """(lines of batches, line of figures, standard error)"""
        out, said = process.communicate(timeout=6 * SLOW)
        said = said.decode()
        self.assertEqual(process.returncode, status, said)
        lines = out.decode().splitlines()
        info = [line for line in lines if line.startswith("info")]
        return [line for line in lines if line[0].isdigit()], (info or [""])[0], said

    def on_host(self, d, keys=KEYS):
        batches, _, _ = self.finish(self.start(d, "--host", job="host", keys=keys))
        self.assertGreater(len(batches), 20)
        return batches

    def test_two_epochs_on_the_device_hold_the_bytes_of_the_host(self):
        d = self.daemon()
        want = self.on_host(d)
        for depth, delay in ((3, 0), (1, 300), (2, 2000)):
            got, info, said = self.finish(self.start(
                d, "--depth", str(depth), env={"STANDIN_DELAY_US": str(delay)}))
            self.assertEqual(got, want)
            self.assertEqual(info, "info memory 1 batches %d pageable 0 contexts 10" % len(want))
            self.assertEqual(said, "")

    def test_packed_rows_and_their_boundaries_arrive_as_well(self):
        d = self.daemon()
        want = self.on_host(d, keys=PACKED)
        self.assertEqual(self.finish(self.start(d, keys=PACKED))[0], want)

    def test_memory_that_cannot_be_pinned_costs_a_warning_and_no_byte(self):
        d = self.daemon()
        want = self.on_host(d)
        for code, name in ((1, "cudaErrorInvalidValue"), (2, "cudaErrorMemoryAllocation"), (801, "cudaErrorNotSupported")):
            got, info, said = self.finish(self.start(d, env={"STANDIN_FAIL": "cudaHostRegister:1:99:%d" % code}))
            self.assertEqual(got, want)
            self.assertIn("memory 2 ", info)
            self.assertEqual(len(said.splitlines()), 1, said)
            self.assertIn(name, said)
        got, info, said = self.finish(self.start(d, "--flags", "2"))
        self.assertEqual(got, want)
        self.assertIn("memory 3 batches %d pageable %d" % (len(want), len(want)), info)

    def test_ranks_use_their_own_device_and_no_other(self):
        d = self.daemon()
        first = self.start(d, "--world", "2", "--rank", "0")
        second = self.start(d, "--world", "2", "--rank", "1", "--device", "1", "--pci", "0000:42:00.0")
        self.assertIn("contexts 10", self.finish(first)[1])
        self.assertIn("contexts 01", self.finish(second)[1])

    def test_two_replicas_in_one_process_register_the_same_memory_each(self):
        d = self.daemon()
        got, info, said = self.finish(self.start(d, "--pair", env={"STANDIN_DELAY_US": "200"}))
        self.assertEqual(got, self.on_host(d))
        self.assertIn("memory 1 batches %d pageable 0" % len(got), info)
        self.assertEqual(said, "")

    def test_a_killed_daemon_costs_no_batch_and_none_comes_twice(self):
        d = self.daemon()
        want = self.on_host(d)
        t = self.start(d, "--stop-at", "20", "--reconnect", "20000", env={"STANDIN_DELAY_US": "1000"})
        self.assertEqual(read_line(t.stdout, SLOW, "the trainer"), "stopped\n")
        d.kill()
        d.start()
        t.stdin.write(b"\n")
        got, info, _ = self.finish(t)
        self.assertEqual(got, want)
        self.assertIn("memory 1 ", info)

    def test_a_killed_trainer_leaves_the_daemon_as_it_was(self):
        d = self.daemon()
        self.finish(self.start(d))
        d.wait_idle()
        before = harness.settled_fds(d.pid)
        t = self.start(d, "--stop-at", "9", env={"STANDIN_DELAY_US": "100000"})
        self.assertEqual(read_line(t.stdout, 3 * SLOW, "the trainer"), "stopped\n")
        t.send_signal(signal.SIGKILL)
        t.wait(SLOW)
        d.wait_idle()
        wait_until(lambda: harness.footprint(d.pid)["fds"] <= before, what="its descriptors")

    def test_the_older_runtime_serves_as_well(self):
        d = self.daemon()
        want = self.on_host(d)
        self.assertEqual(self.finish(self.start(d, runtime="12"))[0], want)

    def test_without_a_device_the_pipeline_says_so_and_the_host_works(self):
        d = self.daemon()
        _, _, said = self.finish(self.start(d, env={"STANDIN_DEVICES": "0"}), status=2)
        self.assertIn("open: -%d: CUDA: " % errno.ENODEV, said)
        self.assertIn("cudaErrorNoDevice", said)
        self.on_host(d)

    def test_with_no_runtime_or_driver_at_all_the_same(self):
        d = self.daemon()
        t = self.start(d, runtime=None)
        out, said = t.communicate(timeout=3 * SLOW)
        if t.returncode == 3:
            self.skipTest("this machine has a CUDA device")
        self.assertEqual(t.returncode, 2, said)
        self.assertIn(b"open: -19: CUDA: ", said)

    def test_a_device_that_is_no_device_is_refused_with_what_is_allowed(self):
        d = self.daemon()
        for device, says in (({"pci": "../../etc"}, "0000:41:00.0"), ({"pci": 7}, "string"), ("gpu", "object"),
                             ({"pci": "", "host_node": -2}, "from -1 on")):
            raw = Raw(d.socket)
            self.addCleanup(raw.close)
            with self.assertRaises(harness.Refused) as caught:
                raw.call("io.stoker.Attach", attach_parameters(device=device), more=True)
            self.assertIn(says, caught.exception.reason)
            self.assertEqual(caught.exception.code, -errno.EINVAL)


if __name__ == "__main__":
    harness.main()
