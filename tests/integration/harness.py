# SPDX-License-Identifier: Apache-2.0
"""Real daemons and real clients as processes, in a temporary directory each.

A test file defines classes of Case with methods whose names are sentences, and ends with main().
Programs come from the environment (STOKERD_BIN, STOKERCTL_BIN, STOKER_BIN, TRAINER_BIN), else from
the build directory STOKER_BUILD. Everything that was started is ended by its own pid.
"""
import json
import mmap
import os
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

SLOW = 20  # seconds after which something that takes milliseconds has failed

EPOCH_END, STREAM_END, TIMEOUT = 2, 3, 1

DTYPES = {"U8": "B", "I8": "b", "U16": "H", "I16": "h", "U32": "I", "I32": "i", "U64": "Q",
          "I64": "q", "F32": "f", "F64": "d", "BOOL": "B"}
# struct format of enum stk_element
ELEMENTS = {1: "B", 2: "B", 3: "b", 4: "H", 5: "h", 6: "I", 7: "i", 8: "Q", 9: "q", 12: "f", 13: "d"}


def without_cursor(state):
    """A state before the first batch as older releases saved it: the header alone, in hexadecimal."""
    return state[:2 * 60] + "00000000" + state[2 * 64:2 * 72]


def program(name, build=None):
    """Absolute path of a built program, or None."""
    places = {
        "stokerd": ["daemon/serve/stokerd", "daemon/stokerd"],
        "stokerctl": ["tools/stokerctl"],
        "stoker": ["tools/stoker"],
        "trainer": ["tests/integration/trainer"],
    }
    given = os.environ.get(name.upper() + "_BIN")
    if given and not build:
        return given
    for place in places[name]:
        path = os.path.join(build or os.environ.get("STOKER_BUILD", "."), place)
        if os.path.exists(path):
            return os.path.abspath(path)
    return None


def need(name):
    path = program(name)
    if not path:
        raise unittest.SkipTest("%s is not built; set STOKER_BUILD" % name)
    return path


NOBODY = 65534


def need_nobody():
    """These programs have to be run by another user."""
    if os.geteuid() != 0:
        raise unittest.SkipTest("needs root to be another user")
    for path in (need("stokerd"), need("trainer"), os.path.abspath(__file__)):
        if subprocess.run(["test", "-r", path], user=NOBODY).returncode:
            raise unittest.SkipTest("%s is out of reach of another user" % path)


# Data.

def tokens(sample, n):
    """What a sample of n tokens holds: no two samples alike, no zeros."""
    return [(sample * 7919 + j * 31 + 1) % 30000 + 1 for j in range(n)]


def pack(dtype, values):
    return struct.pack("<%d%s" % (len(values), DTYPES[dtype]), *values)


def write_shard(path, tensors, convention=True):
    """tensors: {name: (dtype, shape, bytes)}"""
    header, at = {}, 0
    if convention:
        header["__metadata__"] = {"stoker": "ragged=values+offsets;version=1"}
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    # Renamed: a daemon may have the older file mapped.
    with open(path + ".new", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            f.write(data)
    os.rename(path + ".new", path)


def ragged(name, rows, dtype="I32"):
    """The two tensors of a ragged field."""
    offsets, flat = [0], []
    for row in rows:
        flat += row
        offsets.append(len(flat))
    return {name + ".offsets": ("I64", [len(offsets)], pack("I64", offsets)),
            name + ".values": (dtype, [len(flat)], pack(dtype, flat))}


def write_dataset(folder, lengths, shards=2, dtype="I32", name="input_ids"):
    """A dataset of len(lengths) samples in a few shards. Returns the samples."""
    os.makedirs(folder, exist_ok=True)
    samples = [tokens(i, n) for i, n in enumerate(lengths)]
    per = max(1, -(-len(samples) // shards))
    for s in range(shards):
        part = samples[s * per:(s + 1) * per]
        write_shard(os.path.join(folder, "part-%03d.safetensors" % s), ragged(name, part, dtype))
    return samples


def random_lengths(n, low=1, high=90, seed=1):
    r = random.Random(seed)
    return [r.randint(low, high) for _ in range(n)]


def tensor(batch, name):
    """A tensor of a batch that was read with data: (shape, values)."""
    t = batch["tensors"][name]
    data = bytes.fromhex(t["hex"])
    form = ELEMENTS[t["element"]]
    return t["shape"], list(struct.unpack("<%d%s" % (len(data) // struct.calcsize(form), form), data))


def rows_of(batch, name):
    shape, values = tensor(batch, name)
    width = shape[1]
    return [values[i * width:(i + 1) * width] for i in range(shape[0])]


def batches(entries):
    return [e for e in entries if e["r"] == 0]


def ids_of(entries):
    return [i for b in batches(entries) for i in b["ids"] if i >= 0]


# Processes.

def wait_until(check, seconds=SLOW, what="the state asked for"):
    deadline = time.monotonic() + seconds
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError("%s did not come within %s s" % (what, seconds))
        time.sleep(0.01)


def is_alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def end_pid(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def is_sanitized(pid):
    """Whether the memory figures are those of a sanitizer."""
    with open("/proc/%d/maps" % pid) as f:
        maps = f.read()
    return "libasan" in maps or "libtsan" in maps


def footprint(pid):
    """What a process holds: descriptors, mappings, kB of memory, threads."""
    status = {}
    with open("/proc/%d/status" % pid) as f:
        for line in f:
            key, _, value = line.partition(":")
            status[key] = value.split()
    with open("/proc/%d/maps" % pid) as f:
        maps = sum(1 for _ in f)
    return {
        "fds": len(os.listdir("/proc/%d/fd" % pid)),
        "maps": maps,
        "rss_kb": int(status["VmRSS"][0]),
        "shmem_kb": int(status["RssShmem"][0]),
        "threads": int(status["Threads"][0]),
    }


def settled_fds(pid):
    """Descriptors of a daemon, once it has put away the connections that were just closed."""
    seen = [-1, -2, -3]
    while len(set(seen[-3:])) > 1:
        seen.append(footprint(pid)["fds"])
        time.sleep(0.02)
    return seen[-1]


def cpu_ticks(pid):
    with open("/proc/%d/stat" % pid) as f:
        words = f.read().rsplit(")", 1)[1].split()
    return int(words[11]) + int(words[12])


def read_line(pipe, seconds, what):
    """One line of a raw pipe, or AssertionError. What came behind it stays for the next call."""
    line, deadline = bytearray(getattr(pipe, "rest", b"")), time.monotonic() + seconds
    while b"\n" not in line:
        ready, _, _ = select.select([pipe], [], [], max(0, deadline - time.monotonic()))
        if not ready:
            raise AssertionError("%s said nothing for %s s" % (what, seconds))
        data = os.read(pipe.fileno(), 1 << 20)
        if not data:
            raise AssertionError("%s ended; it said %r" % (what, bytes(line)))
        line += data
    end = line.index(b"\n") + 1
    pipe.rest = bytes(line[end:])
    return line[:end].decode()


class Daemon:
    """A stokerd of its own. `conf` is YAML text; locking and placing are tried, not required."""

    def __init__(self, folder, conf="", args=(), build=None, name="stokerd", env=None, **popen):
        self.folder = folder
        self.socket = os.path.join(folder, name + ".sock")
        self.conf_path = os.path.join(folder, name + ".yaml")
        self.log_path = os.path.join(folder, name + ".log")
        self.write_conf(conf)
        self.argv = [program("stokerd", build) or need("stokerd"), "--config", self.conf_path,
                     "--socket", self.socket] + list(args)
        self.env = dict(os.environ, **(env or {}))
        self.popen = popen
        self.process = None
        self.killed = False  # by the test: then its exit status says nothing
        self.start()

    def write_conf(self, conf):
        text = "" if "lock:" in conf.split("streams:")[0] else "lock: try\n"
        text += "" if "numa:" in conf.split("streams:")[0] else "numa: try\n"
        with open(self.conf_path, "w") as f:
            f.write(text + conf)

    def start(self):
        self.killed = False
        ours, theirs = os.pipe()
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                self.argv + ["--ready-fd", str(theirs)], stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, pass_fds=[theirs], env=self.env, **self.popen)
        os.close(theirs)
        with open(ours, "rb", 0) as pipe:
            self.ready = read_line(pipe, SLOW, "stokerd").strip()
        if self.ready != "ok":
            self.process.wait(SLOW)
            raise AssertionError("stokerd did not start: " + self.ready)

    @property
    def pid(self):
        return self.process.pid

    def log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def wait_log(self, text, seconds=SLOW):
        return wait_until(lambda: text in self.log(), seconds, "%r in the log" % text)

    def call(self, method, **parameters):
        raw = Raw(self.socket)
        try:
            return raw.call("io.stoker." + method, parameters)
        finally:
            raw.close()

    def jobs(self):
        return self.call("Jobs")["jobs"]

    def queues(self, job=None):
        return [q for q in self.call("Queues")["queues"] if job is None or q["job"] == job]

    def queue(self, job, rank=0):
        for q in self.queues(job):
            if q["rank"] == rank:
                return q
        return None

    def wait_idle(self):
        wait_until(lambda: not self.jobs() and not self.call("Status")["memory_used"], what="the end of all jobs")

    def wait_full(self, job, rank=0):
        """All free slots of a feed are filled and published."""
        def full():
            q = self.queue(job, rank)
            return q and q["state"] != "waiting" and not q["filling"] and (
                not q["free"] or q["state"] == "ended")
        wait_until(full, what="a full ring")

    def kill(self):
        self.killed = True
        self.process.kill()
        self.process.wait(SLOW)

    def stop(self):
        """SIGTERM; the daemon has to end well."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(SLOW)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("stokerd did not end %d s after SIGTERM" % SLOW)


class Trainer:
    """One client process; see trainer.c. Attached once the constructor returns, unless refused."""

    def __init__(self, args, env=None, wait=True, **popen):
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [need("trainer")] + [str(a) for a in args], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self.errors, bufsize=0, env=dict(os.environ, **(env or {})),
            **popen)
        self.hello = None
        if wait:
            self.wait_open()

    def wait_open(self, seconds=SLOW):
        self.hello = self.receive(seconds)
        return self.hello

    @property
    def pid(self):
        return self.process.pid

    @property
    def error(self):
        return self.hello.get("error")

    def send(self, *words):
        self.process.stdin.write((" ".join(str(w) for w in words) + "\n").encode())

    def receive(self, seconds=SLOW):
        try:
            return json.loads(read_line(self.process.stdout, seconds, "the trainer"))
        except AssertionError as e:
            self.errors.seek(0)
            raise AssertionError("%s\n%s" % (e, self.errors.read().decode(errors="replace"))) from None

    def do(self, *words, seconds=SLOW):
        self.send(*words)
        return self.receive(seconds)

    def run(self, n=0, data=False):
        """Takes n entries (0: all) and gives them back at once."""
        reply = self.do("run", n, *(["data"] if data else []), seconds=60)
        self.last = reply
        for entry in reply["entries"]:
            entry.pop("slot", None)  # which memory it was is nobody's promise
        return reply["entries"]

    def state(self):
        return self.do("state")["state"]

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait(SLOW)

    def end(self):
        """Closes its input; the trainer closes its client and ends."""
        self.process.stdin.close()
        return self.process.wait(SLOW)

    def cleanup(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(SLOW)
        for f in (self.process.stdin, self.process.stdout, self.errors):
            f.close()


class Refused(Exception):
    def __init__(self, name, parameters):
        super().__init__("%s %s" % (name, parameters))
        self.name = name
        self.reason = parameters.get("reason", "")
        self.code = parameters.get("code", 0)


class Raw:
    """A Varlink client that speaks bytes, with descriptors."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)  # blocking: it may have to wait in a full queue
        self.socket.settimeout(SLOW)
        self.bytes = b""
        self.fds = []

    def close(self):
        self.socket.close()
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def send(self, data):
        self.socket.sendall(data)

    def message(self, method, parameters, more=False):
        call = {"method": method, "parameters": parameters}
        if more:
            call["more"] = True
        self.send(json.dumps(call).encode() + b"\0")

    def receive(self):
        """The next message; descriptors gather in self.fds. EOFError when the daemon hung up."""
        while b"\0" not in self.bytes:
            try:
                data, fds, _, _ = socket.recv_fds(self.socket, 1 << 16, 16)
            except ConnectionResetError:
                data, fds = b"", []
            self.fds += fds
            if not data:
                raise EOFError
            self.bytes += data
        text, _, self.bytes = self.bytes.partition(b"\0")
        return json.loads(text)

    def reply(self):
        """The last reply of a call."""
        while True:
            m = self.receive()
            if "error" in m:
                raise Refused(m["error"], m.get("parameters", {}))
            if not m.get("continues"):
                return m["parameters"]

    def call(self, method, parameters=None, more=False):
        self.message(method, parameters or {}, more)
        return self.reply()

    def attach(self, **changes):
        """Takes a seat; five descriptors come along."""
        return self.call("io.stoker.Attach", attach_parameters(**changes), more=True)

    def hung_up(self, seconds=SLOW):
        """Whether the daemon closes this connection; what it says until then is thrown away."""
        self.socket.settimeout(seconds)
        try:
            while self.socket.recv(1 << 16):
                pass
            return True
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False


def attach_parameters(**changes):
    parameters = {"stream": "", "spec": {}, "job": "raw", "rank": 0, "world": 1, "replica": 0,
                  "replicas": 1, "state": "", "protocol_min": 1, "protocol_max": 1, "layout": 1,
                  "release": "test"}
    parameters.update(changes)
    return parameters


class SeatFile:
    """What a client may write: its seat file, as proto/shm.h has it."""
    RELEASE_TAIL = 128

    def __init__(self, raw):
        control, _, seat, self.kick = raw.fds[:4]
        self.control = mmap.mmap(control, os.fstat(control).st_size, mmap.MAP_SHARED, mmap.PROT_READ)
        self.seat = mmap.mmap(seat, os.fstat(seat).st_size)
        self.entries, = struct.unpack_from("<I", self.seat, 8)
        self.ring, = struct.unpack_from("<Q", self.seat, 16)

    def published(self):
        """[(slot, index)] of the batches in the publish ring, while it has not wrapped."""
        tail, = struct.unpack_from("<I", self.control, 256)
        at, = struct.unpack_from("<Q", self.control, 32)
        found = []
        for i in range(tail):
            kind, slot = struct.unpack_from("<II", self.control, at + 32 * (i % self.entries))
            if kind == 1:
                found.append((slot, i))
        return found

    def step(self, index):
        """Of a publish entry."""
        at, = struct.unpack_from("<Q", self.control, 32)
        return struct.unpack_from("<Q", self.control, at + 32 * (index % self.entries) + 24)[0]

    def put(self, position, slot, index):
        struct.pack_into("<Q", self.seat, self.ring + 8 * (position % self.entries),
                         index << 32 | slot)

    def set_tail(self, tail):
        struct.pack_into("<I", self.seat, self.RELEASE_TAIL, tail)
        os.write(self.kick, struct.pack("<Q", 1))

    def close(self):
        self.control.close()
        self.seat.close()


class Case(unittest.TestCase):
    """Gives each test a folder, and ends what the test started."""

    longMessage = True

    def run(self, result=None):
        self.daemons = []
        before = len(result.failures) + len(result.errors)
        super().run(result)
        if len(result.failures) + len(result.errors) > before:
            for log in self.daemons:
                sys.stderr.write("--- log of stokerd in %s\n%s" % (self.id(), log[-16000:]))
        return result

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="stoker-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def dataset(self, lengths, name="data", **options):
        """Returns (path, samples)."""
        folder = self.path(name)
        return folder, write_dataset(folder, lengths, **options)

    def daemon(self, conf="", args=(), **options):
        d = Daemon(self.folder, conf, args, **options)
        self.addCleanup(self._end_daemon, d)
        return d

    def _end_daemon(self, d):
        try:
            status = d.stop()
        finally:
            self.daemons.append(d.log())
        if not d.killed:
            self.assertEqual(status, 0, "exit status of stokerd")
        for bad in ("ERROR: AddressSanitizer", "runtime error:", "ERROR: LeakSanitizer",
                    "WARNING: ThreadSanitizer"):
            self.assertNotIn(bad, d.log())

    def trainer(self, d, path=None, stream=None, job="job", keys=(), **options):
        """A client of daemon d; options as in trainer.c (rank=1 becomes --rank 1)."""
        popen = {k: options.pop(k) for k in ("env", "wait", "user", "preexec_fn") if k in options}
        args = ["--socket", d.socket, "--job", job] if d else ["--job", job]
        args += ["--path", path] if path else []
        args += ["--stream", stream] if stream else []
        for key, value in options.items():
            args += ["--" + key.replace("_", "-"), value]
        t = Trainer(args + list(keys), **popen)
        self.addCleanup(t.cleanup)
        return t

    def attached(self, *args, **options):
        t = self.trainer(*args, **options)
        self.assertEqual(t.hello["r"], 0, t.hello)
        return t

    def refused(self, *args, **options):
        """The text with which an attach is refused; the trainer has to end with an error."""
        t = self.trainer(*args, **options)
        self.assertLess(t.hello["r"], 0, t.hello)
        self.assertNotEqual(t.process.wait(SLOW), 0)
        return t.error

    def ranks(self, d, world, path=None, keys=(), **options):
        return [self.attached(d, path, keys=keys, rank=r, world=world, **options)
                for r in range(world)]

    def raw(self, d):
        r = Raw(d.socket)
        self.addCleanup(r.close)
        return r

    def ctl(self, d, *args, status=0):
        """Output of stokerctl."""
        p = subprocess.run([need("stokerctl"), *args, "--socket", d.socket], capture_output=True,
                           text=True, timeout=SLOW)
        self.assertEqual(p.returncode, status, p.stderr)
        return p.stdout


def main():
    program_ = unittest.main(exit=False, verbosity=2, warnings="ignore")
    result = program_.result
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(77 if result.testsRun and len(result.skipped) == result.testsRun else 0)
