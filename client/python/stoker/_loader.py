# SPDX-License-Identifier: Apache-2.0
"""stoker.Loader: what a trainer iterates over. Everything that happens for each batch is in the extension."""
import gc
import glob
import json
import logging
import os
import struct
import sys
import time
import warnings
import weakref

from . import _device, _launcher, _ranks, _shapes, _tensors
from ._errors import AgreementError, Error, JobError, NoticeWarning, SlotsHeldWarning, SpecError, Timeout
from ._stoker import Client, control

log = logging.getLogger("stoker")

DAEMONS = {"auto": 0, "system": 1, "private": 2}
BUSY_S = 3.0  # a seat of our own that was just given up may still be seen as taken
HEADER = struct.Struct("<8sII16s16sQII8x")  # what every state begins with

_announced: set[str] = set()


def _announce(place):
    """Once for each process: what was found, and from where."""
    if place.source and str(place) not in _announced:
        _announced.add(str(place))
        print(f"stoker: {place}", file=sys.stderr, flush=True)


def _is_path(data):
    return os.sep in data or os.path.exists(data) or glob.has_magic(data)


def _as_data(data):
    """The spec's form of one path or of several, as paths or {"path": ..., "weight": ...}."""
    if isinstance(data, (str, os.PathLike)):
        return os.fspath(data)
    if isinstance(data, dict):
        return {**data, "path": os.fspath(data["path"])} if "path" in data else data
    return [_as_data(item) for item in data]


def _identity(state, base):
    """What must be the same on all ranks, from a state and where it starts."""
    _, _, plan, fingerprint, digest, seed, world, size = HEADER.unpack_from(state)
    return {"fingerprint": fingerprint.hex(), "spec digest": digest.hex(), "seed": seed, "world": world,
            # Older daemons tell no cursor of the beginning.
            "start": state[HEADER.size:HEADER.size + size].hex() if any(base) else "the beginning",
            "plan version": plan}


def _odd_ranks(found):
    """A sentence for each value in which ranks differ; "" when all agree. found: one dict for each rank."""
    said = []
    for name in found[0]:
        values = [str(f[name]) for f in found]
        usual = max(set(values), key=values.count)
        odd = [f"rank {i} has {v}" for i, v in enumerate(values) if v != usual]
        if odd:
            said.append(f"{name}: {', '.join(odd)}; the others {usual}")
    return "; ".join(said)


class Loader:
    """Batches of a stream, for one data-parallel rank.

    data:
        A file, directory or glob of shards, or several (a list of paths or of
        {"path": ..., "weight": ...}): served by a private daemon, one for each job and node. Or the
        name of a stream that the system daemon is configured for.
    as_:
        "torch" (default if torch is imported), "numpy", "jax" or "dlpack"; on a device also "cupy".
    device:
        Where batches are: None or "cpu", host memory; "cuda", the device that is current when the first
        batch is taken; "cuda:1", 1 or a torch.device. Each batch is one asynchronous copy, made ahead, and
        the framework's current stream waits for it. DeviceError where there is no such device. "auto": the
        current device, or host memory and a warning where there is none.
    depth:
        Batches on the device, held ones included; 0: 3. A for loop holds one while it asks for the next.
    pin:
        For host batches that you copy to a device yourself: True, or that device. They lie in page-locked
        memory, and are given back when the stream that was current at next(), and those of record_stream()
        and to(), are done with them.
    daemon, socket:
        "auto" (a path: private, a name: system), "private" or "system"; the socket of the latter.
    rank, world_size, replica, replicas, mesh:
        The place of this process. Left out: from torch.distributed if it is initialised, else from the
        launcher (RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK), which is printed once. replicas: how many
        neighbouring processes receive the same batches. mesh: a DeviceMesh of one dimension, or
        (mesh, name of the data-parallel dimension).
    job:
        Name of the run, the same in all its processes; left out: the launcher's.
    timeout:
        Seconds that a batch may take before TimeoutError says who is waited for.
    reconnect:
        Seconds that a lost connection may take to come back.
    state:
        Start here: what state_dict() returned.
    lookahead:
        How many batches the consumer fetches before it trains on them; state_dict() is behind by that.
    copy:
        True: tensors of their own memory, slots go back at once. None: only where it is needed, which
        is for torch and dlpack with several replicas.
    progress:
        Called with (stage, done, total) while the daemon opens the data.

    Every other keyword is a key of the stream (tokens=16384, buckets=8, seed=17, fields=[...]); see
    stokerd.yaml(5). For torch, and without fields, integers come as int64, with `labels` (padding is
    -100) and an int64 `attention_mask`.

    iter() goes on to the end of the epoch: after a break it continues at the next step, after the end
    it begins the next epoch.
    """

    def __init__(self, data, *, as_=None, device=None, depth=0, pin=False, daemon="auto", socket=None, rank=None,
                 world_size=None, replica=None, replicas=None, mesh=None, job=None, timeout=300.0,
                 attach_timeout=300.0, reconnect=60.0, state=None, lookahead=0, copy=None, progress=None, **keys):
        self._client = None
        if daemon not in DAEMONS:
            raise SpecError(f"daemon={daemon!r}: one of {', '.join(DAEMONS)}")
        if not timeout > 0:
            raise SpecError(f"timeout={timeout!r}: seconds above 0")
        self.place = _ranks.find(rank, world_size, replica, replicas, mesh)
        self._pipeline, as_ = _device.pipeline(as_, device, depth, pin)
        self._as = _tensors.framework(as_)
        self._timeout = timeout
        start, self._base = self._parse(state)  # base: epoch and step at which this loader starts
        if self._as == "torch" and "fields" not in keys:
            keys.setdefault("default_fields", "torch")
        arguments = self._where(data, daemon, socket, keys)
        job, private_name = self._names(job)
        arguments.update(
            job=job, private_name=private_name, rank=self.place.rank, world=self.place.world,
            replica=self.place.replica, replicas=self.place.replicas,
            attach_timeout_ms=int(attach_timeout * 1000), reconnect_ms=int(reconnect * 1000), state=start,
            progress=progress, on_wait=_on_wait(weakref.ref(self)),
            maker=tuple(self._maker(copy, pin)), pipeline=self._pipeline.kind, device=self._pipeline.device,
            depth=self._pipeline.depth, current_stream=self._pipeline.current_stream,
            timeout_ms=min(int(timeout * 1000), 2**32 - 1), lookahead=int(lookahead))
        _announce(self.place)
        self._open(arguments)
        if self._info["notice"]:
            warnings.warn(f"stoker: {self._info['notice']}", NoticeWarning, stacklevel=2)

    # Opening.

    def _names(self, job):
        """Of the job, and of the private daemon where it is called otherwise; None: libstoker finds it."""
        return job or _launcher.job_name(), None

    def _maker(self, copy, pin):
        maker = _tensors.maker(self._as, self.place.replicas, copy, self._pipeline.kind == _device.DEVICE)
        if maker.copy and self._pipeline.kind == _device.HOST:
            raise SpecError(f"pin={pin!r}: tensors are copies of their own, with copy=True or replicas of a rank")
        return maker

    @staticmethod
    def _where(data, daemon, socket, keys):
        where = {"stream": None, "path": None, "spec": None, "socket": socket, "daemon": DAEMONS[daemon]}
        if "data" in keys:
            raise SpecError("data: it is the first argument")
        if isinstance(data, str) and daemon != "private" and not _is_path(data):
            where["stream"] = data
        else:
            keys = {"data": _as_data(data), **keys}
        if keys:
            where["spec"] = json.dumps(keys, default=_plain)
        return where

    def _open(self, arguments):
        dist = _ranks.distributed()
        if dist is None or dist.get_world_size() != self.place.world * self.place.replicas \
                or dist.get_world_size() == 1:
            self._client = self._attach(arguments)
            self._read_info()
            return
        # All ranks tell how it went, so that one that failed does not leave the others waiting.
        failed = None
        try:
            self._client = self._attach(arguments)
            self._read_info()
            mine = _identity(self._client.state()[0], self._base)
        except Error as e:
            failed, mine = e, str(e)
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, mine)
        if failed:
            raise failed
        errors = [f"rank {i}: {f}" for i, f in enumerate(found) if isinstance(f, str)]
        odd = "" if errors else _odd_ranks(found)
        if errors or odd:
            self.close()
            raise AgreementError(f"other ranks could not attach: {'; '.join(errors)}" if errors
                                 else f"ranks differ in {odd}")

    @staticmethod
    def _attach(arguments):
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                return Client(**arguments)
            except JobError as e:
                if f"pid {os.getpid()}" not in str(e) or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def _read_info(self):
        self._info = self._client.info()
        self._schema = json.loads(self._info["schema"])
        self._shapes = [_shapes.Shape(*s) for s in self._client.shapes()]

    # Iterating.

    def __iter__(self):
        return self._client.epoch()

    def __len__(self):
        """Batches of an epoch for this rank: steps times micro-batches."""
        if not self._info["steps_per_epoch"]:
            raise TypeError("no length: this stream has no epochs, or each has its own number of steps")
        return self._info["steps_per_epoch"] * self._info["micros"]

    def total_steps(self, epochs):
        """Optimiser steps of that many epochs, for a learning-rate schedule."""
        if not self._info["steps_per_epoch"]:
            raise TypeError("this stream has no epochs, or each has its own number of steps")
        return self._info["steps_per_epoch"] * epochs

    @property
    def epoch(self):
        """The epoch that the next batch belongs to."""
        return self._position()[0]

    @property
    def step(self):
        """The step of the epoch that comes next."""
        return self._position()[1]

    def _position(self):
        taken, epoch, step, last_micro, ended = self._client.position()
        if not taken:
            return self._base
        return (epoch + 1, 0) if ended else (epoch, step + 1 if last_micro else step)

    # State.

    def state_dict(self, after=None):
        """Where to continue: after everything that next() returned, or after the batch `after`.

        A dict of numbers and strings. Costs no message, and works after the daemon died.
        """
        if after is None:
            state, epoch, step = self._client.state()
            if epoch is None:
                epoch, step = self._base
        else:
            state = self._client.state_after(after)
            epoch, step = after.epoch, after.step + 1 if after.last_micro else after.step
            if after.ends_epoch:
                epoch, step = epoch + 1, 0
        return {"version": 1, "epoch": epoch, "step": step, "state": state.hex()}

    def load_state_dict(self, state):
        """Continues after a state. All replicas of a rank have to load the same one."""
        start, base = self._parse(state)
        if self._client.position()[0] or start != self._client.state()[0]:
            self._client.seek(start)
        self._base = base

    @staticmethod
    def _parse(state):
        """(bytes, (epoch, step)) of what state_dict() returned; None: the beginning."""
        if state is None:
            return None, (0, 0)
        try:
            if state["version"] != 1:
                raise SpecError(f"state: version {state['version']!r}, this stoker knows 1")
            return bytes.fromhex(state["state"]), (int(state["epoch"]), int(state["step"]))
        except (KeyError, TypeError, ValueError) as e:
            if isinstance(e, SpecError):
                raise
            raise SpecError(f"state: not what state_dict() returned: {e!r}") from None

    # Shapes and figures.

    def shapes(self):
        """Every shape class that batches can have; Batch.shape_class is an index into it."""
        return list(self._shapes)

    def examples(self):
        """One batch of each shape class at its largest, largest first; no sample is consumed.

        Every row is full, of samples with the id -1, and the figures are those of such a batch.
        """
        order = sorted(range(len(self._shapes)), reverse=True,
                       key=lambda i: self._shapes[i].rows * self._shapes[i].width_max)
        ranks = self.place.world * self._info["micros"]
        for i in order:
            example = _shapes.example(self._as, self._schema, i, self._shapes[i], ranks)
            yield example.to(self.device) if self._as == "torch" and self.device != "cpu" else example

    @property
    def device(self):
        """Where batches are, for torch.device(): "cpu", "cuda:1", or "cuda" until the first batch."""
        cuda = self._client.cuda()
        if self._pipeline.kind != _device.DEVICE:
            return "cpu"
        number = cuda["device"] if cuda else self._pipeline.device
        return "cuda" if number < 0 else f"cuda:{number}"

    def stats(self):
        """A flat dict of floats, for a logger; never does I/O."""
        figures, cuda = self._client.stats(), self._client.cuda()
        if cuda:
            figures.update(copies_ahead=float(cuda["ahead"]), copies_in_flight=float(cuda["in_flight"]),
                           copies_lagging=float(cuda["lagging"]), page_locked=float(cuda["memory"] == "registered"))
        return figures

    def why(self):
        """Who is waited for: one sentence from the daemon's figures."""
        return self._client.why()

    def quarantined(self):
        """Samples that this job has masked, with on_bad_sample="quarantine": dicts, the lowest 512 ids of them.

        Of all ranks that this node's daemon feeds; asks it.
        """
        asked = json.dumps({"stream": self._stream(), "job": self._info["job"]})
        jobs = json.loads(control(self._info["socket"], "io.stoker.Quarantine", asked, 5000))["jobs"]
        return next((job["samples"] for job in jobs if job["uid"] == os.geteuid()), [])

    def _stream(self):
        """The stream's name as the daemon has it: a path stands for itself."""
        return self._info["stream"] or self._schema["spec"]["data"][0]["path"]

    @property
    def info(self):
        """What the daemon tells about data, plan and job, the resolved spec included."""
        return {**{k: v for k, v in self._info.items() if k != "schema"}, "spec": self._schema.get("spec"),
                "counts": self._schema.get("counts"), "fields": self._schema["fields"]}

    # The end.

    def close(self):
        """Gives the seat back. Batches that are still held stay readable."""
        if self._client is not None:
            self._client.close()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def __reduce__(self):
        raise TypeError("a stoker.Loader belongs to its process; make one in the other")

    def __repr__(self):
        return f"<stoker.Loader {self._info['stream'] or self._info['job']} rank {self.place.rank}/{self.place.world}>"


class EvalLoader(Loader):
    """Each sample once for each iter(), in stored order. See eval_loader()."""

    def _names(self, job):
        """A job of its own, served by the private daemon that feeds the training."""
        run = job or _launcher.run_name()
        if run is None and self.place.world * self.place.replicas == 1:
            run = f"pid-{os.getpid()}"  # what libstoker calls a process alone
        return run and f"{run}-eval", run

    def __iter__(self):
        taken, _, _, _, ended = self._client.position()
        if taken and not ended:
            self._client.seek(None)
        return self._client.epoch()


def eval_loader(data, *, rows=32, **arguments):
    """A loader for exact evaluation: every sample once over all ranks, in stored order, and iter()
    always starts at the beginning. Arguments are those of Loader; job is the training's, whose private
    daemon serves this one too."""
    arguments.setdefault("order", "none")
    return EvalLoader(data, rows=rows, **arguments)


def _plain(value):
    """Numbers of numpy and torch, paths, and other things that users put into keys."""
    if hasattr(value, "item"):
        return value.item()
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise SpecError(f"a key's value {value!r} is neither number, text, list nor dict")


def _warn_held(loader):
    gc.collect()  # a cycle may be all that holds them
    stats = loader._client.stats()
    held, slots = int(stats["slots_held"]), int(stats["slots"])
    if held >= slots:
        raise_, what = ("depth", "device slots") if loader._pipeline.kind == _device.DEVICE else ("prefetch", "slots")
        warnings.warn(f"{held} of {slots} {what} are held by Python references, so no batch can come; "
                      f"clone() the tensors that you keep, or raise {raise_}", SlotsHeldWarning, stacklevel=3)


def _on_wait(reference):
    """What happens while a batch is waited for: a hint at 1 s, a log line at 10 s, an error at the end.

    Also called often while the user holds every slot (full).
    """
    def told(before_ms, waited_ms, full):
        loader = reference()
        if loader is None:
            return
        if full:
            _device.reap()
        if full and before_ms < 1000 <= waited_ms:
            _warn_held(loader)
        if waited_ms >= loader._timeout * 1000:
            raise Timeout(f"no batch within {loader._timeout:g} s; waiting for {loader.why()}")
        if before_ms < 10000 <= waited_ms:
            log.warning("no batch since %d s; waiting for %s", waited_ms // 1000, loader.why())
    return told
