# SPDX-License-Identifier: Apache-2.0
"""The daemon that the first client of a job starts, that the others join, and that ends after them."""
import os
import signal
import subprocess
import time

import harness
from harness import (Case, NOBODY, STREAM_END, batches, end_pid, ids_of, is_alive, need, random_lengths,
                     wait_until)

LINGER = 5


class Private(Case):
    def setUp(self):
        super().setUp()
        self.data, _ = self.dataset(random_lengths(120))
        self.run_dir = self.path("run")
        os.mkdir(self.run_dir, 0o700)
        self.env = {"XDG_RUNTIME_DIR": self.run_dir, "STOKERD": need("stokerd")}
        self.keys = ["rows=4", "prefetch=4", "lock=try"]
        self.started = set()
        self.addCleanup(self.end_daemons)

    def end_daemons(self):
        for pid in self.started:
            end_pid(pid)

    def client(self, job="job", wait=True, env=None, **options):
        t = self.trainer(None, self.data, job=job, keys=self.keys, daemon=2, wait=wait,
                         env=dict(self.env, **(env or {})), **options)
        if wait:
            self.note(t)
        return t

    def note(self, t):
        if t.hello["r"] == 0:
            self.started.add(t.hello["daemon_pid"])
        return t.hello

    def log(self, job="job"):
        with open(os.path.join(self.run_dir, "stoker", job + ".log")) as f:
            return f.read()

    def test_a_path_alone_is_served_by_a_daemon_of_the_job(self):
        t = self.client()
        self.assertEqual(t.hello["r"], 0, t.hello)
        self.assertEqual(t.hello["private"], 1)
        self.assertEqual(t.hello["socket"], os.path.join(self.run_dir, "stoker", "job.sock"))
        self.assertEqual(os.stat(os.path.join(self.run_dir, "stoker")).st_mode & 0o777, 0o700)
        self.assertEqual(sorted(ids_of(t.run(30))), list(range(120)))

    def test_a_weight_counts_in_a_daemon_of_ones_own(self):
        self.keys.append("weight=7")
        t = self.client()
        raw = harness.Raw(t.hello["socket"])
        self.addCleanup(raw.close)
        self.assertEqual([q["weight"] for q in raw.call("io.stoker.Queues")["queues"]], [7])

    def test_two_ranks_started_at_the_same_moment_share_one_daemon(self):
        for round_ in range(5):
            job = "both-%d" % round_
            pair = [self.client(job, wait=False, rank=r, world=2) for r in range(2)]
            for t in pair:
                t.wait_open()
                self.assertEqual(self.note(t)["r"], 0, t.hello)
            self.assertEqual(pair[0].hello["daemon_pid"], pair[1].hello["daemon_pid"])
            got = sorted(i for t in pair for i in ids_of(t.run(15)))
            self.assertEqual(got, list(range(120)))
            for t in pair:
                t.cleanup()
        self.assertEqual(len(self.started), 5, "one for each job")

    def test_it_ends_some_seconds_after_the_last_client_and_leaves_no_socket(self):
        t = self.client()
        pid = t.hello["daemon_pid"]
        t.end()
        time.sleep(1)
        self.assertTrue(is_alive(pid), "the next process of the job may still come")
        wait_until(lambda: not is_alive(pid), LINGER + 2, "the end of the daemon")
        self.assertFalse(os.path.exists(os.path.join(self.run_dir, "stoker", "job.sock")))

    def test_a_client_that_comes_within_the_linger_keeps_it(self):
        d = self.daemon(args=["--private", "--linger", "800ms"])
        self.attached(d, self.data, keys=self.keys).end()
        again = self.attached(d, self.data, keys=self.keys)
        time.sleep(1.2)
        self.assertEqual(len(batches(again.run(5))), 5)
        again.end()
        self.assertEqual(d.process.wait(3), 0)
        self.assertFalse(os.path.exists(d.socket))

    def test_a_private_daemon_that_nobody_attaches_to_ends(self):
        d = self.daemon(args=["--private", "--linger", "300ms"])
        self.assertEqual(d.process.wait(3), 0)

    def test_signals_to_the_group_do_not_end_it_while_somebody_is_attached(self):
        t = self.client()
        pid = t.hello["daemon_pid"]
        self.assertEqual(os.getsid(pid), pid, "a session of its own")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT):
            os.kill(pid, number)
        self.assertEqual(len(batches(t.run(60))), 59, "one of them is the end of the epoch")
        self.assertTrue(is_alive(pid))
        t.end()
        wait_until(lambda: "left, pid" in self.log(), what="the end of the seat")
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not is_alive(pid), 2, "the end of the daemon")

    def test_a_start_error_of_the_daemon_is_the_clients_error(self):
        os.mkdir(os.path.join(self.run_dir, "stoker"), 0o700)
        in_the_way = os.path.join(self.run_dir, "stoker", "job.sock")
        with open(in_the_way, "w"):
            pass
        t = self.client()
        self.assertLess(t.hello["r"], 0)
        self.assertIn(in_the_way, t.error)
        self.assertIn("not a socket", t.error)
        self.assertTrue(os.path.exists(in_the_way))

    def test_a_daemon_program_that_is_not_there_is_named(self):
        t = self.client(env={"STOKERD": "/nonexistent/stokerd"})
        self.assertLess(t.hello["r"], 0)
        self.assertIn("/nonexistent/stokerd", t.error)

    def test_an_error_of_the_data_is_the_clients_error_and_the_daemon_ends(self):
        data, self.data = self.data, self.path("nothing-here")
        t = self.client("bad")
        self.assertLess(t.hello["r"], 0)
        self.assertIn("nothing-here", t.error)
        self.data = data

    def test_a_job_whose_daemon_was_killed_starts_another_over_the_stale_socket(self):
        t = self.client()
        first = t.hello["daemon_pid"]
        end_pid(first)
        wait_until(lambda: not is_alive(first), what="the death of the daemon")
        self.assertTrue(os.path.exists(t.hello["socket"]), "a stale socket")
        t.cleanup()
        again = self.client()
        self.assertEqual(again.hello["r"], 0, again.hello)
        self.assertNotEqual(again.hello["daemon_pid"], first)
        self.assertEqual(len(batches(again.run(5))), 5)

    def test_a_client_with_reconnect_starts_its_killed_daemon_once_again(self):
        self.keys.append("epochs=1")
        t = self.client(reconnect=15000)
        first = t.run(9)
        end_pid(t.hello["daemon_pid"])
        rest = t.run()
        self.started.add(t.do("info")["daemon_pid"])
        self.assertEqual(t.last["r"], STREAM_END, t.last)
        self.assertEqual(sorted(ids_of(first) + ids_of(rest)), list(range(120)))

    def test_its_descriptors_hold_nothing_of_the_client(self):
        r, w = os.pipe()
        os.set_inheritable(w, True)
        p = subprocess.Popen([need("trainer"), "--path", self.data, "--job", "fds", "--daemon", "2"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                             env=dict(os.environ, **self.env), close_fds=False)
        self.addCleanup(p.wait)
        self.addCleanup(p.kill)
        hello = harness.json.loads(harness.read_line(p.stdout, harness.SLOW, "the trainer"))
        self.started.add(hello["daemon_pid"])
        os.close(w)
        p.stdin.close()
        p.stdout.close()
        p.wait(harness.SLOW)
        self.assertTrue(is_alive(hello["daemon_pid"]))
        self.assertEqual(os.read(r, 1), b"", "the other end is closed while the daemon lives")
        os.close(r)

    def test_a_folder_of_another_user_is_not_used(self):
        if os.geteuid() != 0:
            self.skipTest("needs root to make one")
        os.mkdir(os.path.join(self.run_dir, "stoker"), 0o700)
        os.chown(os.path.join(self.run_dir, "stoker"), NOBODY, NOBODY)
        os.mkdir(self.path("tmp"))
        t = self.client(env={"TMPDIR": self.path("tmp")})
        self.assertEqual(t.hello["r"], 0, t.hello)
        self.assertNotIn(self.run_dir, t.hello["socket"])
        self.assertEqual(os.listdir(os.path.join(self.run_dir, "stoker")), [])


if __name__ == "__main__":
    harness.main()
