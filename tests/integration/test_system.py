# SPDX-License-Identifier: Apache-2.0
"""The daemon of a node: configured streams, reload, trust, service notification, a clean end."""
import os
import resource
import signal
import socket
import subprocess
import time

import harness
from harness import Case, NOBODY, SLOW, batches, ids_of, need, random_lengths, wait_until


class System(Case):
    def setUp(self):
        super().setUp()
        self.data, _ = self.dataset(random_lengths(60))
        self.conf = self.streams("gsm8k")

    def streams(self, *names, extra="rows: 4"):
        text = "streams:\n"
        for name in names:
            text += "  - name: %s\n    data: %s\n    %s\n" % (name, self.data, extra)
        return text

    def test_a_configured_stream_is_attached_to_by_its_name(self):
        d = self.daemon(self.conf)
        t = self.attached(d, stream="gsm8k", keys=["epochs=1"])
        self.assertEqual(sorted(ids_of(t.run())), list(range(60)))

    def test_keys_of_an_attach_go_on_top_of_the_streams(self):
        d = self.daemon(self.streams("s", extra="rows: 4\n    seed: 5"))
        plain = self.attached(d, stream="s", job="plain").run(10)
        same = self.attached(d, stream="s", job="same", keys=["seed=5"]).run(10)
        other = self.attached(d, stream="s", job="other", keys=["seed=6"]).run(10)
        self.assertEqual(plain, same)
        self.assertNotEqual(ids_of(plain), ids_of(other))
        rows = self.attached(d, stream="s", job="rows", keys=["rows=6"]).run(2)
        self.assertEqual(rows[0]["rows"], 6)
        for job in d.jobs():
            self.assertEqual(job["stream"], "s")

    def test_data_of_a_configured_stream_stays_as_configured(self):
        d = self.daemon(self.conf)
        error = self.refused(d, stream="gsm8k", keys=["data=/etc"])
        self.assertIn("data", error)
        self.assertIn("gsm8k", error)

    def test_data_beside_the_configuration_may_be_named_relative_to_it(self):
        d = self.daemon("streams:\n  - name: near\n    data: data\n    rows: 4\n")
        self.assertEqual(len(batches(self.attached(d, stream="near").run(3))), 3)

    def test_replies_of_megabytes_to_calls_sent_together_arrive_whole_and_in_order(self):
        names = ["stream-%d" % i for i in range(1000)]
        raw = self.raw(self.daemon(self.streams(*names)))
        for _ in range(30):
            raw.message("io.stoker.Streams", {})
            raw.message("io.stoker.Status", {})
        time.sleep(0.2)  # the daemon has more for us than a socket holds
        for _ in range(30):
            self.assertEqual([s["name"] for s in raw.reply()["streams"]], names)
            self.assertEqual(raw.reply()["jobs"], 0)

    def test_a_reload_adds_streams_and_leaves_running_jobs_alone(self):
        d = self.daemon(self.conf)
        t = self.attached(d, stream="gsm8k", keys=["epochs=4", "prefetch=2"])
        first = t.run(5)
        self.assertIn("unknown stream", self.refused(d, stream="late"))
        d.write_conf(self.streams("gsm8k", "late", extra="rows: 7"))
        d.process.send_signal(signal.SIGHUP)
        d.wait_log("reloaded")
        late = self.attached(d, stream="late", job="late", keys=["epochs=1"])
        self.assertEqual(sorted(ids_of(late.run())), list(range(60)))
        rest = t.run()
        self.assertEqual({b["rows"] for b in batches(first + rest)}, {4}, "the job keeps its spec")
        self.assertEqual(len(ids_of(first + rest)), 240)
        self.assertEqual(self.attached(d, stream="gsm8k", job="new").run(1)[0]["rows"], 7)

    def test_a_bad_reload_keeps_the_old_configuration_and_says_where(self):
        d = self.daemon(self.conf)
        t = self.attached(d, stream="gsm8k")
        for bad, says in (("streams:\n  - name: gsm8k\n    data: /x\n    rows: 0\n", "rows"),
                          ("streams: [\n", "yaml"), ("nonsense: 1\n", "nonsense")):
            before = d.log().count("the old configuration stays")
            d.write_conf(bad)
            d.process.send_signal(signal.SIGHUP)
            wait_until(lambda: d.log().count("the old configuration stays") > before, what="the refusal")
            self.assertIn(says, d.log().splitlines()[-1])
            self.assertIn(d.conf_path, d.log().splitlines()[-1])
        os.unlink(d.conf_path)
        d.process.send_signal(signal.SIGHUP)
        wait_until(lambda: d.log().count("the old configuration stays") == 4, what="the refusal")
        self.assertEqual(len(batches(t.run(5))), 5)
        self.assertEqual(self.attached(d, stream="gsm8k", job="new").run(1)[0]["rows"], 4)

    def test_many_reloads_leave_nothing_behind(self):
        d = self.daemon(self.conf)

        def reload(n):
            for i in range(n):
                before = d.log().count("reloaded")
                d.process.send_signal(signal.SIGHUP)
                wait_until(lambda: d.log().count("reloaded") > before, what="reload %d" % i)
        reload(5)
        before = harness.footprint(d.pid)
        reload(40)
        after = harness.footprint(d.pid)
        self.assertEqual(after["fds"], before["fds"])
        self.assertLessEqual(after["maps"], before["maps"] + 2)

    def check_config(self, text):
        path = self.path("check.yaml")
        with open(path, "w") as f:
            f.write(text)
        p = subprocess.run([need("stokerd"), "--check-config", "--config", path], capture_output=True,
                           text=True, timeout=SLOW)
        return p.returncode, p.stdout + p.stderr

    def test_check_config_says_what_is_wrong_with_file_and_line(self):
        status, text = self.check_config(self.conf)
        self.assertEqual(status, 0, text)
        self.assertIn("1 streams", text)
        path = self.path("check.yaml")
        for bad, place, says in (
                ("workers: 9999\n", ":1", "0 to 512"),
                ("memory: 1GiB\nworkrs: 2\n", ":2", "workers"),
                ("streams:\n  - name: a\n    data: /x\n    batch_size: 3\n", ":4", "rows"),
                ("streams:\n  - {name: a, data: /x}\n  - {name: a, data: /y}\n", ":3", "already"),
                ("streams:\n  - data: /x\n", ":2", "name"),
                ("a: &x [*x]\n", "", "check.yaml"),
                ("memory: -1\n", ":1", "memory"),
                ("cpu: 1.5\n", ":1", "1.5")):
            status, text = self.check_config(bad)
            self.assertEqual(status, 2, (bad, text))
            self.assertIn(path + place, text)
            self.assertIn(says, text)

    def test_files_of_the_folder_beside_it_are_read_in_name_order(self):
        path = self.path("stokerd.yaml.d")
        os.mkdir(path)
        for name, text in (("20-b.yaml", "workers: 3\n"), ("10-a.yaml", "workers: 2\nstreams:\n"
                                                          "  - {name: second, data: %s}\n" % self.data)):
            with open(os.path.join(path, name), "w") as f:
                f.write(text)
        d = self.daemon(self.conf)
        self.assertEqual([s["name"] for s in d.call("Streams")["streams"]], ["gsm8k", "second"])
        self.assertEqual(d.call("Status")["workers"], 3)

    def test_the_socket_of_a_system_daemon_is_open_to_all_and_of_a_private_one_to_its_user(self):
        d = self.daemon(self.conf)
        self.assertEqual(os.stat(d.socket).st_mode & 0o777, 0o666)
        p = self.daemon(args=["--private", "--linger", "300ms"], name="private")
        self.assertEqual(os.stat(p.socket).st_mode & 0o777, 0o600)

    def test_sigterm_ends_it_with_jobs_running(self):
        d = self.daemon(self.conf)
        ts = [self.attached(d, stream="gsm8k", job="j%d" % i) for i in range(3)]
        for t in ts:
            t.do("next")
        start = time.monotonic()
        self.assertEqual(d.stop(), 0)
        self.assertLess(time.monotonic() - start, 3)
        for t in ts:
            self.assertEqual(t.do("hold")["r"], -32)
            self.assertEqual(t.end(), 0)


class Trust(Case):
    def setUp(self):
        super().setUp()
        harness.need_nobody()
        self.data, _ = self.dataset(random_lengths(60))
        os.chmod(self.folder, 0o755)
        self.conf = "streams:\n  - {name: s, data: %s, rows: 4}\n" % self.data

    def test_another_user_may_attach_to_a_configured_stream_but_not_to_a_path(self):
        d = self.daemon(self.conf)
        self.assertEqual(len(batches(self.attached(d, stream="s", user=NOBODY).run(5))), 5)
        self.assertEqual(d.jobs()[0]["uid"], NOBODY)
        self.assertIn("path", self.refused(d, self.data, user=NOBODY, job="p"))

    def test_only_listed_users_attach_when_users_are_listed(self):
        d = self.daemon("users: [65533]\n" + self.conf)
        self.assertIn("65534", self.refused(d, stream="s", user=NOBODY))
        self.attached(d, stream="s", user=65533)
        self.attached(d, stream="s")

    def test_users_and_groups_are_listed_by_name_too_and_one_that_is_not_there_is_warned_of(self):
        d = self.daemon("users: [nobody, no-such-user]\ngroups: [no-such-group]\n" + self.conf)
        for name in ("no-such-user", "no-such-group"):
            self.assertIn('"%s"' % name, d.log())
        self.attached(d, stream="s", user=NOBODY)
        self.assertIn("65533", self.refused(d, stream="s", user=65533, job="other"))

    def test_a_member_of_a_thousand_groups_is_found_by_the_last_of_them(self):
        d = self.daemon("groups: [4000]\n" + self.conf)
        code = """
import os, sys; sys.path.insert(0, %r); import harness
os.setgroups(list(range(3000, 4001)))
os.setgid(65533); os.setuid(65533)
print(harness.Raw(%r).attach(stream="s")["seat"])
""" % (os.path.dirname(os.path.abspath(__file__)), d.socket)
        p = subprocess.run(["/usr/bin/python3", "-c", code], capture_output=True, text=True, timeout=SLOW)
        self.assertEqual(p.stdout, "0\n", p.stderr)

    def test_one_user_cannot_take_all_connections(self):
        limit = 512
        d = self.daemon(self.conf, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
        code = """
import os, sys; sys.path.insert(0, %r); import harness
raws, refused = [], ""
while not refused and len(raws) < 600:
    raws.append(harness.Raw(%r))
    try:
        try:
            raws[-1].message("io.stoker.Status", {})
        except BrokenPipeError:
            pass  # it was refused unheard
        raws[-1].reply()
    except harness.Refused as e:
        refused = e.reason
print(len(raws) - 1, refused, flush=True)
sys.stdin.read()
""" % (os.path.dirname(os.path.abspath(__file__)), d.socket)
        p = subprocess.Popen(["/usr/bin/python3", "-c", code], user=NOBODY, text=True, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE)
        self.addCleanup(p.communicate)
        number, reason = p.stdout.readline().split(" ", 1)
        self.assertEqual(int(number), limit // 8 // 8)
        self.assertIn("user %d has %d connections" % (NOBODY, limit // 8 // 8), reason)
        self.attached(d, stream="s", user=65533)

    def test_jobs_of_two_users_with_one_name_are_two_jobs(self):
        d = self.daemon(self.conf)
        a = self.attached(d, stream="s", user=NOBODY, keys=["epochs=1"])
        b = self.attached(d, stream="s", keys=["epochs=1", "seed=9"])
        self.assertEqual(sorted(ids_of(a.run())), sorted(ids_of(b.run())))
        self.assertEqual(sorted(j["uid"] for j in d.jobs()), [0, NOBODY])

    def test_another_user_cannot_detach_a_job(self):
        d = self.daemon(self.conf)
        t = self.attached(d, stream="s")
        code = """
import sys; sys.path.insert(0, %r); import harness
try:
    print(harness.Raw(%r).call("io.stoker.Detach", {"stream": "s", "job": "job"}))
except harness.Refused as e:
    print("refused", e.reason)
""" % (os.path.dirname(os.path.abspath(__file__)), d.socket)
        p = subprocess.run(["/usr/bin/python3", "-c", code], user=NOBODY, capture_output=True, text=True,
                           timeout=SLOW)
        self.assertTrue(p.stdout.startswith("refused"), (p.stdout, p.stderr))
        self.assertEqual(len(batches(t.run(5))), 5)

    def test_a_private_daemon_serves_its_own_user_only(self):
        d = self.daemon(args=["--private", "--linger", "300ms"])
        os.chmod(d.socket, 0o666)
        self.assertIn("65534", self.refused(d, self.data, user=NOBODY))


class Service(Case):
    """What systemd hears and gives."""

    def receive(self, s, word):
        deadline = time.monotonic() + SLOW
        while time.monotonic() < deadline:
            text = s.recv(4096).decode()
            if word in text:
                return text
        raise AssertionError(word)

    def listener(self, kind, path):
        s = socket.socket(socket.AF_UNIX, kind)
        self.addCleanup(s.close)
        s.bind(path)
        s.settimeout(SLOW)
        return s

    def test_the_service_manager_hears_of_start_reload_and_end(self):
        s = self.listener(socket.SOCK_DGRAM, self.path("notify"))
        d = self.daemon(env={"NOTIFY_SOCKET": self.path("notify")})
        if "systemd" not in subprocess.run(["ldd", need("stokerd")], capture_output=True, text=True).stdout:
            self.skipTest("built without libsystemd")
        self.receive(s, "READY=1")
        d.process.send_signal(signal.SIGHUP)
        self.receive(s, "RELOADING=1")
        self.receive(s, "READY=1")
        d.stop()
        self.receive(s, "STOPPING=1")

    def test_a_socket_from_the_service_manager_is_served_and_not_removed(self):
        if "systemd" not in subprocess.run(["ldd", need("stokerd")], capture_output=True, text=True).stdout:
            self.skipTest("built without libsystemd")
        path = self.path("activated.sock")
        s = self.listener(socket.SOCK_STREAM, path)
        s.listen(16)
        conf = self.path("conf.yaml")
        with open(conf, "w") as f:
            f.write("lock: try\nnuma: try\n")
        # A socket that waits is served by whoever starts: LISTEN_PID names the process itself.
        pid = os.fork()
        if pid == 0:
            try:
                os.dup2(s.fileno(), 3)
                os.set_inheritable(3, True)  # it may have been 3 already
                env = dict(os.environ, LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
                os.execve(need("stokerd"), ["stokerd", "--config", conf], env)
            finally:
                os._exit(127)
        try:
            raw = harness.Raw(path)
            self.addCleanup(raw.close)
            status = raw.call("io.stoker.Status")
            self.assertEqual((status["pid"], status["socket"]), (pid, path))
            os.kill(pid, signal.SIGTERM)
            self.assertEqual(os.waitpid(pid, 0)[1], 0)
            pid = None
            self.assertTrue(os.path.exists(path))
        finally:
            if pid:
                harness.end_pid(pid)
                os.waitpid(pid, 0)


if __name__ == "__main__":
    harness.main()
