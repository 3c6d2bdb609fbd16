# SPDX-License-Identifier: Apache-2.0
"""Processes and threads: signals, exits, forks, kills, ranks. Nothing hangs, leaks or prints noise."""
import json
import os
import random
import signal
import threading
import time

import common
import harness
import stoker
from common import LoaderCase, ids, needs_torch
from harness import is_alive, wait_until

KILLS = int(os.environ.get("STOKER_KILLS", "8"))
ATTACHES = int(os.environ.get("STOKER_ATTACHES", "100"))


class Exits(LoaderCase):
    def check(self, code, status=0, stderr="", stdout=None):
        s = self.script(code)
        got = s.end()
        self.assertEqual(got[0], status, got)
        if stderr is not None:
            self.assertEqual(got[2], stderr)
        if stdout is not None:
            self.assertEqual(got[1], stdout)
        return got

    def test_a_script_may_end_with_a_batch_in_its_hands(self):
        self.check("l = loader(); b = next(iter(l)); t = b['input_ids']")

    def test_a_script_may_end_within_its_loop_or_a_cycle(self):
        self.check("l = loader(); cycle = [l]; cycle.append(cycle)\nfor b in l: sys.exit(3)", 3)

    def test_an_exception_in_the_loop_is_the_only_one(self):
        _, _, err = self.check("l = loader()\nfor b in l: raise RuntimeError('mine')", 1, None)
        self.assertIn("RuntimeError: mine", err)
        self.assertEqual(err.count("Traceback"), 1)

    def test_the_loader_may_go_before_its_batch(self):
        self.check("l = loader(); b = next(iter(l)); t = b['input_ids']; del l, b; print(sum(memoryview(t).tolist()[0]) > 0)",
                   stdout="True\n")

    def test_a_thread_that_waits_does_not_keep_the_process(self):
        start = time.monotonic()
        self.check("""
l = loader(rank=0, world_size=1, replica=0, replicas=2)
threading.Thread(target=lambda: next(iter(l)), daemon=True).start()
time.sleep(0.3)""")
        self.assertLess(time.monotonic() - start, 10)

    def test_closing_ends_a_wait_of_another_thread(self):
        self.check("""
l = loader(rank=0, world_size=1, replica=0, replicas=2)
def wait():
    try: next(iter(l))
    except stoker.Error as e: print(e)
t = threading.Thread(target=wait); t.start(); time.sleep(0.2); l.close(); t.join()""", stdout="this loader is closed\n")

    def test_control_c_ends_a_wait_at_once(self):
        s = self.script("""
l = loader(rank=0, world_size=1, replica=0, replicas=2)
print("waiting", flush=True)
try: next(iter(l))
except KeyboardInterrupt:
    print(time.monotonic(), flush=True)
    sys.exit(130)""")
        self.assertEqual(s.line(), "waiting")
        time.sleep(0.3)
        sent = time.monotonic()
        os.kill(s.pid, signal.SIGINT)
        came = float(s.line())
        self.assertLess(came - sent, 1)
        self.assertEqual(s.end()[0], 130)

    def test_control_c_ends_an_attach_that_waits(self):
        # The folder's lock is held, so a private daemon cannot start; the system daemon is stopped instead.
        os.kill(self.d.pid, signal.SIGSTOP)
        self.addCleanup(os.kill, self.d.pid, signal.SIGCONT)
        s = self.script("print('go', flush=True)\ntry: loader()\nexcept KeyboardInterrupt: sys.exit(130)")
        s.line()
        time.sleep(0.5)
        os.kill(s.pid, signal.SIGINT)
        self.assertEqual(s.end(5)[0], 130)
        os.kill(self.d.pid, signal.SIGCONT)


class Threads(LoaderCase):
    def test_several_threads_may_share_a_loader(self):
        l = self.loader(as_="dlpack", prefetch=16)
        lock = threading.Lock()

        def take(it, seen):
            for b in it:
                with lock:
                    seen.extend(ids(b))
        for epoch in range(30):  # who waits may see the end before what others have made ahead is returned
            seen, it = [], iter(l)
            threads = [threading.Thread(target=take, args=(it, seen)) for _ in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join(harness.SLOW)
            self.assertEqual(sorted(seen), list(range(200)), epoch)

    def test_each_thread_may_have_its_own_loader(self):
        counts, errors = [], []

        def work(i):
            try:
                for epoch in range(2):
                    with self.loader(as_="dlpack", job="t%d" % i) as l:
                        counts.append(sum(b.rows for b in l))
            except Exception as e:
                errors.append(e)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(harness.SLOW)
        self.assertEqual((errors, counts), ([], [200] * 12))

    def test_several_loaders_live_in_one_process(self):
        loaders = [self.loader(as_="dlpack", job="job-%d" % i) for i in range(4)]
        for batches in zip(*loaders):
            self.assertEqual(len({tuple(ids(b)) for b in batches}), 1)

    def test_attaching_again_and_again_leaves_nothing(self):
        def cycle():
            l = self.loader(as_="dlpack")
            b = next(iter(l))
            l.close()
            self._cleanups.pop()
            self.assertEqual(b["input_ids"].shape[0], b.rows)
        for _ in range(10):
            cycle()
        before = [harness.footprint(p) for p in (os.getpid(), self.d.pid)]
        for _ in range(ATTACHES):
            cycle()
        self.d.wait_idle()
        # A feed's descriptors are closed on a work thread, a moment after its memory is counted back.
        pids = (os.getpid(), self.d.pid)
        harness.wait_until(lambda: all(harness.footprint(p)["fds"] <= b["fds"] + 3 for p, b in zip(pids, before)),
                           what="no more descriptors than before")
        after = [harness.footprint(p) for p in pids]
        for b, a in zip(before, after):
            self.assertLessEqual(a["maps"] - b["maps"], 60 if harness.is_sanitized(os.getpid()) else 6)
            self.assertLessEqual(a["threads"], b["threads"])

    def test_an_attach_that_cannot_map_leaves_the_daemon_alone(self):
        other = self.loader(as_="dlpack", job="other")
        it = iter(other)
        s = self.script("""
import resource
with open('/proc/self/statm') as f: now = int(f.read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (now + (4 << 20), now + (4 << 20)))
try: loader(rows=1000, prefetch=64)
except stoker.LimitError as e: print(e)""")
        status, out, err = s.end()
        self.assertEqual((status, err), (0, ""))
        self.assertIn("RLIMIT_AS", out)
        sum(1 for _ in it)


    def test_an_attach_at_the_limit_of_descriptors_names_it_and_leaves_no_half(self):
        s = self.script("""
import resource
keep = len(os.listdir("/proc/self/fd")) - 1
said = set()
for more in range(12):
    resource.setrlimit(resource.RLIMIT_NOFILE, (keep + more, 4096))
    try:
        l = loader()
    except stoker.LimitError as e:
        said.add("descriptor limit %d reached" % (keep + more) in str(e) or str(e))
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
        assert len(os.listdir("/proc/self/fd")) - 1 == keep, os.listdir("/proc/self/fd")
    else:
        break
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
held = [b for _, b in zip(range(4), l)]
before = len(os.listdir("/proc/self/fd"))
more = [t for b in held for t in b.values() for _ in range(1000)]
print(said, len(os.listdir("/proc/self/fd")) == before, more is not None)""")
        status, out, err = s.end()
        self.assertEqual((status, out), (0, "{True} True True\n"), err)
        self.d.wait_idle()


class Forks(LoaderCase):
    @needs_torch
    def test_workers_of_a_dataloader_are_told_and_the_parents_loader_goes_on(self):
        s = self.script("""
import torch
class Data(torch.utils.data.IterableDataset):
    def __iter__(self): return iter(l)
l = loader(as_="torch", epochs=1); it = iter(l); seen = next(it).sample_ids.tolist()
try: list(torch.utils.data.DataLoader(Data(), batch_size=None, num_workers=1, multiprocessing_context="fork"))
except stoker.ForkedError as e: print("Caught ForkedError" in str(e), "make one here" in str(e))
class Own(torch.utils.data.IterableDataset):
    def __iter__(self): return iter(loader(as_="torch", job="worker", epochs=1))
rows = [len(b["input_ids"]) for b in torch.utils.data.DataLoader(Own(), batch_size=None, num_workers=1,
                                                               multiprocessing_context="fork")]
for b in it: seen += b.sample_ids.tolist()
print(sum(rows), sorted(seen) == list(range(200)))""")
        status, out, err = s.end()
        self.assertEqual((status, out), (0, "True True\n200 True\n"), err)

    def test_a_program_that_is_started_meanwhile_does_not_keep_the_seat(self):
        s = self.script("""
import subprocess
l = loader(); next(iter(l))
p = subprocess.Popen(["sleep", "60"], close_fds=False)
q = subprocess.Popen(["sleep", "60"], preexec_fn=lambda: None, close_fds=False)
l.close(); next(iter(loader(rows=5)))
for x in p, q:
    print([t for t in (os.readlink("/proc/%d/fd/%s" % (x.pid, f)) for f in os.listdir("/proc/%d/fd" % x.pid))
           if "memfd" in t or "socket" in t or "eventfd" in t])
    x.kill(); x.wait()""")
        self.assertEqual(s.end(), (0, "[]\n[]\n", ""))

    def test_a_forked_child_is_told_and_the_parent_goes_on(self):
        s = self.script("""
l = loader(epochs=1); it = iter(l); b = next(it); seen = list(memoryview(b.sample_ids))
r, w = os.pipe()
pid = os.fork()
if pid == 0:
    for call in (lambda: next(it), l.state_dict, lambda: iter(l)):
        try: call()
        except stoker.ForkedError as e: os.write(w, b"forked ")
    os.write(w, str(sum(memoryview(b["input_ids"]).tolist()[0])).encode())
    own = loader(job="child"); next(iter(own))
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
got = os.read(r, 100).decode()
assert got == "forked forked forked %d" % sum(memoryview(b["input_ids"]).tolist()[0]), got
for b in it: seen += memoryview(b.sample_ids).tolist()
print(sorted(seen) == list(range(200)))""")
        self.assertEqual(s.end(), (0, "True\n", ""))

    def test_multiprocessing_children_may_have_their_own(self):
        for way in "spawn", "forkserver", "fork":
            with open(self.path("child.py"), "w") as f:
                f.write(common.PRELUDE + """
import multiprocessing as mp
def child(queue):
    l = loader(job="child"); queue.put(sum(len(memoryview(b.sample_ids)) for b in l))
if __name__ == "__main__":
    l = loader(); it = iter(l); next(it)
    context = mp.get_context(sys.argv[1]); q = context.Queue()
    p = context.Process(target=child, args=(q,)); p.start(); print(q.get(timeout=20)); p.join()
    print(p.exitcode, sum(b.rows for b in it))
""")
            s = self.script("import runpy; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
                            if way == "fork" else "import subprocess; sys.exit(subprocess.call([sys.executable] + sys.argv[1:]))",
                            self.path("child.py"), way)
            self.assertEqual(s.end(), (0, "200\n0 196\n", ""), way)

    @needs_torch
    def test_a_loader_sent_to_dataloaders_workers_says_why_not(self):
        s = self.script("""
import pickle
l = loader()
try: pickle.dumps(l)
except TypeError as e: print(e)""")
        self.assertIn("belongs to its process", s.end()[1])


class Ranks(LoaderCase):
    CODE = """
l = loader(rank=None, world_size=None, job=None, private=True, epochs=1)
seen = [(b.step, memoryview(b.sample_ids).tolist()) for b in l]
import json; print(json.dumps([len(seen), l.info["daemon_pid"], seen]))"""

    def launch(self, world, code=None, options=None, **env):
        self.private()
        scripts = [self.script(code or self.CODE, env={
            "RANK": str(r), "WORLD_SIZE": str(world), "LOCAL_RANK": str(r), "MASTER_ADDR": "localhost",
            "MASTER_PORT": "29511", **env}) for r in range(world)]
        ended = [s.end() for s in scripts]
        for status, _, err in ended:
            self.assertEqual(status, 0, err)
        return ended

    def test_two_ranks_share_one_private_daemon_and_every_sample_comes_once(self):
        ended = self.launch(2)
        a, b = (json.loads(out) for _, out, _ in ended)
        self.assertEqual(a[0], b[0], "equal numbers of steps")
        self.assertEqual(a[1], b[1], "one daemon")
        self.assertEqual(sorted(i for _, rows in a[2] + b[2] for i in rows), list(range(200)))
        self.assertEqual([err for _, _, err in ended],
                         ["stoker: rank %d/2 from RANK\n" % r for r in range(2)])

    def test_two_by_two_ranks_with_replicas_see_what_they_should(self):
        code = self.CODE.replace("rank=None", "replicas=2, rank=None")
        got = [json.loads(out)[2] for _, out, _ in self.launch(4, code)]
        self.assertEqual(got[0], got[1])
        self.assertEqual(got[2], got[3])
        self.assertEqual(sorted(i for _, rows in got[0] + got[2] for i in rows), list(range(200)))

    def test_places_come_from_the_launcher_that_is_there(self):
        from stoker import _launcher, _ranks
        find = _ranks.find
        self.assertEqual(find(environ={}), (0, 1, 0, 1, ""))
        self.assertEqual(find(environ={"SLURM_PROCID": "3", "SLURM_NTASKS": "8"}, replicas=2),
                         (1, 4, 1, 2, "SLURM_PROCID"))
        self.assertEqual(str(find(environ={"SLURM_PROCID": "3", "SLURM_NTASKS": "8"}, replicas=2)),
                         "rank 1/4 replica 1/2 from SLURM_PROCID")
        self.assertEqual(find(environ={"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"})[4],
                         "OMPI_COMM_WORLD_RANK")
        self.assertEqual(find(1, 2, environ={"RANK": "0", "WORLD_SIZE": "9"}), (1, 2, 0, 1, ""))
        with self.assertRaises(stoker.SpecError):
            find(environ={"RANK": "0", "WORLD_SIZE": "3"}, replicas=2)
        with self.assertRaises(stoker.SpecError):
            find(environ={"RANK": "zero", "WORLD_SIZE": "3"})
        self.assertEqual(_launcher.job_name({"RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}), "a-1")
        self.assertIsNone(_launcher.job_name({"TORCHELASTIC_RUN_ID": "x"}))
        self.assertIsNone(_launcher.job_name({}))

    def test_a_mesh_dimension_says_rank_and_replica(self):
        from stoker import _ranks

        class Mesh:
            mesh_dim_names, ndim = ("dp", "tp"), 2

            class mesh:
                shape = (4, 2)

            def get_coordinate(self):
                return [3, 1]
        self.assertEqual(_ranks.find(mesh=(Mesh(), "dp")), (3, 4, 1, 2, "mesh dimension dp"))
        with self.assertRaises(stoker.SpecError):
            _ranks.find(mesh=Mesh())

    @needs_torch
    def test_ranks_that_differ_are_named(self):
        code = """
import torch.distributed as dist
dist.init_process_group("gloo")
try: loader(rank=None, world_size=None, seed=5 if dist.get_rank() == 2 else 3, job="job-%d" % dist.get_rank(), private=False)
except stoker.AgreementError as e: print(e)"""
        for _, out, _ in self.launch(4, code):
            self.assertIn("seed: rank 2 has 5; the others 3", out)

    @needs_torch
    def test_a_rank_that_cannot_attach_does_not_leave_the_others_waiting(self):
        code = """
import torch.distributed as dist
dist.init_process_group("gloo")
try: loader("/nonexistent/x" if dist.get_rank() else os.environ["STOKER_DATA"], rank=None, world_size=None, job=None, private=True)
except stoker.Error as e: print(type(e).__name__, e)"""
        (_, first, _), (_, second, _) = self.launch(2, code)
        self.assertIn("AgreementError", first)
        self.assertIn("rank 1: ", first)
        self.assertIn("/nonexistent/x", second)


class Kills(LoaderCase):
    def test_killed_at_random_moments_a_trainer_leaves_nothing(self):
        run = self.private()
        pids, r = set(), random.Random(5)
        for i in range(KILLS):
            s = self.script("print(os.getpid(), flush=True)\nl = loader(private=True, job='k%d')\n"
                            "print(l.info['daemon_pid'], flush=True)\nwhile True:\n  for b in l: pass" % (i % 3))
            s.line()
            if i % 2:
                pids.add(int(s.line()))
            time.sleep(r.random() * 0.2)
            s.process.kill()
            s.process.wait()
        wait_until(lambda: not any(is_alive(p) for p in pids), what="the end of the private daemons")
        wait_until(lambda: not [f for f in os.listdir(os.path.join(run, "stoker")) if f.endswith((".sock", ".lock"))],
                   what="an empty folder")
        self.assertEqual([f for f in os.listdir("/dev/shm") if "stoker" in f], [])

    def test_the_daemon_outlives_a_signal_to_the_whole_group(self):
        self.private()
        s = self.script("""
def checkpoint(*unused):
    time.sleep(1)
    print(sum(b.rows for b in it), flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, checkpoint)
l = loader(private=True, epochs=1); it = iter(l); next(it)
print(l.info["daemon_pid"], flush=True)
while True: time.sleep(1)""", start_new_session=True)
        pid = int(s.line())
        os.killpg(s.pid, signal.SIGTERM)
        self.assertEqual(s.line(), "196")
        self.assertTrue(is_alive(pid))
        self.assertEqual(s.end()[0], 0)
        os.kill(pid, signal.SIGTERM)  # nobody is attached: it ends
        wait_until(lambda: not is_alive(pid), what="the end of the daemon")


if __name__ == "__main__":
    common.main()
