# SPDX-License-Identifier: Apache-2.0
"""Who gets the socket's place: one daemon at a time, and never over somebody else's file."""
import os
import signal
import subprocess
import time

import harness
from harness import Case, SLOW, is_alive, need, random_lengths, wait_until


class Instances(Case):
    def command(self, *args):
        return [need("stokerd"), "--config", self.conf, *args]

    def setUp(self):
        super().setUp()
        self.conf = self.path("conf.yaml")
        with open(self.conf, "w") as f:
            f.write("lock: try\nnuma: try\nworkers: 1\n")

    def launch(self, *args, **options):
        p = subprocess.Popen(self.command(*args), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, **options)
        self.addCleanup(self.end, p)
        return p

    def end(self, p):
        if p.poll() is None:
            p.kill()
        p.wait(SLOW)
        for f in (p.stdout, p.stderr):
            if f and not f.closed:
                f.close()

    def test_a_second_daemon_at_the_socket_is_told_the_pid_of_the_first(self):
        d = self.daemon()
        start = time.monotonic()
        p = self.launch("--socket", d.socket)
        _, err = p.communicate(timeout=SLOW)
        self.assertNotEqual(p.returncode, 0)
        self.assertLess(time.monotonic() - start, 1)
        self.assertIn("already runs there as pid %d" % d.pid, err)
        self.assertEqual(d.call("Status")["pid"], d.pid, "the first one goes on")

    def test_of_eight_started_at_once_exactly_one_runs(self):
        path = self.path("eight.sock")
        start = time.monotonic()
        all_ = [self.launch("--socket", path) for _ in range(8)]
        losers = []
        wait_until(lambda: sum(p.poll() is None for p in all_) == 1, what="the end of seven")
        self.assertLess(time.monotonic() - start, 5)
        runs = [p for p in all_ if p.poll() is None][0]
        wait_until(lambda: os.path.exists(path), what="the socket")
        for p in all_:
            if p is not runs:
                losers.append(p.communicate(timeout=SLOW)[1])
                self.assertNotEqual(p.returncode, 0)
        self.assertEqual(len(losers), 7)
        for err in losers:
            self.assertIn("already runs there as pid", err)
        raw = harness.Raw(path)
        self.assertEqual(raw.call("io.stoker.Status")["pid"], runs.pid)
        raw.close()
        runs.send_signal(signal.SIGTERM)
        self.assertEqual(runs.wait(SLOW), 0)

    def test_eight_with_places_of_their_own_all_run(self):
        all_ = [self.launch("--socket", self.path("own-%d.sock" % i)) for i in range(8)]
        for i, p in enumerate(all_):
            path = self.path("own-%d.sock" % i)
            wait_until(lambda: os.path.exists(path), what="socket %d" % i)
        for p in all_:
            p.send_signal(signal.SIGTERM)
        self.assertEqual([p.wait(SLOW) for p in all_], [0] * 8)

    def test_a_file_in_the_sockets_place_is_refused_and_stays(self):
        path = self.path("precious")
        with open(path, "w") as f:
            f.write("do not touch")
        for link in (path, self.path("link")):
            if link != path:
                os.symlink(path, link)
            p = self.launch("--socket", link)
            _, err = p.communicate(timeout=SLOW)
            self.assertNotEqual(p.returncode, 0)
            self.assertIn(link, err)
            self.assertIn("not a socket", err)
            self.assertFalse(os.path.exists(link + ".lock"), "the lock of a daemon that is not there")
        with open(path) as f:
            self.assertEqual(f.read(), "do not touch")

    def test_a_socket_path_that_is_too_long_is_refused_with_both_numbers(self):
        path = self.path("x" * 120)
        p = self.launch("--socket", path)
        _, err = p.communicate(timeout=SLOW)
        self.assertNotEqual(p.returncode, 0)
        self.assertIn(str(len(path)), err)
        self.assertIn("107", err)

    def test_a_folder_that_does_not_exist_is_named(self):
        p = self.launch("--socket", self.path("nowhere", "s.sock"))
        _, err = p.communicate(timeout=SLOW)
        self.assertNotEqual(p.returncode, 0)
        self.assertIn(self.path("nowhere"), err)

    def test_wrong_options_are_refused_with_the_option(self):
        for args, says in ((["--workers", "9999"], "9999"), (["--memory", "lots"], "lots"),
                           (["--frobnicate"], "usage"), (["extra"], "extra"),
                           (["--ready-fd", "77"], "77"), (["--linger", "2 weeks"], "2 weeks")):
            p = self.launch(*args)
            _, err = p.communicate(timeout=SLOW)
            self.assertEqual(p.returncode, 2, (args, err))
            self.assertIn(says, err)

    def test_started_without_standard_descriptors_no_data_gets_their_numbers(self):
        data, _ = self.dataset(random_lengths(50))
        path = self.path("bare.sock")
        pid = os.fork()
        if pid == 0:
            for fd in (0, 1, 2):
                os.close(fd)
            os.execv(need("stokerd"), self.command("--socket", path))
        try:
            wait_until(lambda: os.path.exists(path), what="the socket")
            t = harness.Trainer(["--socket", path, "--path", data, "--job", "j", "rows=4"])
            self.addCleanup(t.cleanup)
            self.assertEqual(t.hello["r"], 0, t.hello)
            for fd in (0, 1, 2):
                self.assertEqual(os.readlink("/proc/%d/fd/%d" % (pid, fd)), "/dev/null")
            self.assertEqual(len(harness.batches(t.run(5))), 5)
            os.kill(pid, signal.SIGTERM)
            self.assertEqual(os.waitpid(pid, 0)[1], 0)
            pid = None
        finally:
            if pid:
                harness.end_pid(pid)
                os.waitpid(pid, 0)

    def test_sigterm_ends_it_and_removes_the_socket(self):
        d = self.daemon()
        t = self.attached(d, self.dataset(random_lengths(50))[0], keys=["rows=4"])
        t.do("next")
        self.assertEqual(d.stop(), 0)
        self.assertFalse(os.path.exists(d.socket))
        self.assertEqual(t.do("release", "all")["r"], 0)
        self.assertFalse(is_alive(d.pid))


if __name__ == "__main__":
    harness.main()
