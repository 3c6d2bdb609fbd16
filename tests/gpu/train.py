# SPDX-License-Identifier: Apache-2.0
"""The package on a GPU, as a trainer uses it: rows for the table of tests/gpu/run, in parts as those of gpu.h.

usage: train.py DEVICE FILE [PART ...]     the file is from pipeline --write
       train.py --parts
"""
import collections
import faulthandler
import gc
import importlib.util
import json
import os
import sys
import threading
import time
import traceback

stoker = torch = None  # imported within a time limit

WORDS = 16384
KEYS = {"group": "fixed", "length": "t", "fields": [{"name": "x"}], "seed": 5}
failed = False
part_name = "start"


def put_line(value):
    if os.environ.get("GPU_RESULTS"):
        with open(os.environ["GPU_RESULTS"], "a") as f:
            f.write(json.dumps(value) + "\n")


def row(what, ok, text, **figures):
    global failed
    failed |= not ok
    print(f"{what:44}  {text}{'' if ok else '   <-- FAIL'}", flush=True)
    put_line({"part": part_name, "row": what, "ok": bool(ok), "text": text, "figures": figures})


def words(ids):
    """What the samples hold: as word_of() in pipeline.cu."""
    i = torch.arange(WORDS, device=ids.device)
    return ((ids[:, None] * 2654435761 + i * 40503) & 0x7fffffff).to(torch.int32)


class Check:
    """Counts wrong words, on the device; which samples came, on the host."""

    def __init__(self, device):
        self.device, self.bad, self.seen = device, torch.zeros((), dtype=torch.int64, device=device), []

    def __call__(self, batch, x=None):
        ids = batch.sample_ids.clone().to(self.device)
        self.bad += ((batch["x"] if x is None else x) != words(ids)).sum()
        self.seen += batch.sample_ids.tolist()

    def report(self, what, samples, ok=True, text=""):
        bad = self.bad.item()
        once = sorted(self.seen) == list(range(samples))
        row(what, ok and not bad and once, f"{len(self.seen)} samples{'' if once else ', NOT each once'}, {bad} wrong words{text}")


def loader(path, job, **options):
    return stoker.Loader(path, job=f"train-{job}", as_="torch", epochs=1, **{**KEYS, "rows": 16, **options})


def epochs(path, device):
    for name, stream in (("torch, default stream", torch.cuda.default_stream(device)),
                         ("torch, a stream of its own", torch.cuda.Stream(device))):
        check = Check(device)
        with torch.cuda.stream(stream), loader(path, name, device=device) as l:
            for batch in l:
                check(batch)
            page_locked = l.stats()["page_locked"]
            samples = l.info["samples"]
        stream.synchronize()
        check.report(name, samples, page_locked == 1, "" if page_locked else ", not page-locked")


def second_stream(path, device):
    check, side = Check(device), torch.cuda.Stream(device)
    with loader(path, "side", device=device, depth=2) as l:
        for batch in l:
            batch.record_stream(side)
            with torch.cuda.stream(side):
                torch.cuda._sleep(200000)
                check(batch)
            del batch
        side.synchronize()
        check.report("torch, record_stream on a second stream", l.info["samples"])


def own_copies(path, device):
    for name, copy in (("torch, pin=True, x.to(non_blocking), dropped", lambda b: b["x"].to(device, non_blocking=True)),
                       ("torch, pin=True, batch.to(non_blocking)", lambda b: b.to(device, non_blocking=True)["x"])):
        check = Check(device)
        with loader(path, name, pin=device, prefetch=2) as l:
            for batch in l:
                torch.cuda._sleep(200000)
                x = copy(batch)
                check(batch, x)
                del batch, x
            pinned = l.stats()["page_locked"]
            check.report(name, l.info["samples"], pinned == 1)


def graphs(path, device):
    known, check, replays = {}, Check(device), 0
    ids = torch.zeros(16, dtype=torch.int64, device=device)
    bad = torch.zeros((), dtype=torch.int64, device=device)
    addresses = collections.defaultdict(set)
    with loader(path, "graph", device=device, tail="drop") as l:
        for batch in l:
            key = batch.slot, batch.shape_class
            addresses[key].add(batch["x"].data_ptr())
            ids.copy_(batch.sample_ids.clone())
            check.seen += batch.sample_ids.tolist()
            if key not in known:
                (batch["x"] != words(ids)).sum()  # what is made at the first call
                torch.cuda.synchronize(device)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    bad += (batch["x"] != words(ids)).sum()
                known[key] = graph
            else:
                replays += 1
            known[key].replay()
        torch.cuda.synchronize(device)
        ok = replays > len(known) and all(len(a) == 1 for a in addresses.values())
        check.bad += bad
        check.report("torch, CUDA graphs over one shape class", len(check.seen), ok,
                     f", {len(known)} graphs, {replays} replays")


def host_time(path, device):
    times, held = [], None
    with loader(path, "time", device=device) as l:
        it = iter(l)
        for _ in range(200):
            start = time.perf_counter()
            held = next(it, None)
            times.append((time.perf_counter() - start) * 1e6)
            if held is None:
                break
            torch.cuda._sleep(1000000)
            torch.cuda.current_stream(device).synchronize()
    times = sorted(times[10:-1])
    p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
    row("torch, host time of next()", True, f"{len(times)} calls: p50 {p50:.1f} us, p99 {p99:.1f} us",
        p50_us=p50, p99_us=p99)


def no_such_device(path, device):
    try:
        loader(path, "none", device="cuda:999").close()
        row("a device that is not there", False, "was accepted")
    except stoker.DeviceError as e:
        row("a device that is not there", "999" in str(e), str(e))


def by_dlpack(path, device, name, wrong, wait):
    """An epoch for another library than torch. wrong(x, ids): how many words of a batch are not as they should be."""
    bad, seen = 0, []
    with stoker.Loader(path, job=f"train-{name}", as_=name, epochs=1, rows=16, device=device, **KEYS) as l:
        for batch in l:
            ids = memoryview(batch.sample_ids).tolist()
            seen += ids
            bad += wrong(batch["x"], ids)
        wait()
        samples = l.info["samples"]
    once = sorted(seen) == list(range(samples))
    row(f"{name}, an epoch by DLPack", once and not int(bad), f"{len(seen)} samples, {int(bad)} wrong words")


def with_cupy(path, device):
    import cupy

    cupy.cuda.Device(int(device.split(":")[1])).use()
    i = cupy.arange(WORDS, dtype=cupy.int64)

    def wrong(x, ids):
        want = (cupy.asarray(ids, dtype=cupy.int64)[:, None] * 2654435761 + i * 40503) & 0x7fffffff
        return (x != want.astype(cupy.int32)).sum()
    by_dlpack(path, device, "cupy", wrong, cupy.cuda.runtime.deviceSynchronize)


def with_jax(path, device):
    import jax
    import numpy

    i = numpy.arange(WORDS, dtype=numpy.uint32) * numpy.uint32(40503)

    def wrong(x, ids):
        want = (numpy.array(ids, dtype=numpy.uint32)[:, None] * numpy.uint32(2654435761) + i) & 0x7fffffff
        return (x != jax.device_put(want.astype(numpy.int32), x.device)).sum()
    by_dlpack(path, device, "jax", wrong, lambda: None)


# Name, seconds at most, the library it needs, what it does.
PARTS = [
    ("torch-device", 10, "torch", no_such_device),
    ("torch-epochs", 20, "torch", epochs),
    ("torch-second-stream", 20, "torch", second_stream),
    ("torch-own-copies", 20, "torch", own_copies),
    ("torch-graphs", 20, "torch", graphs),
    ("torch-host-time", 15, "torch", host_time),
    ("cupy", 30, "cupy", with_cupy),
    ("jax", 40, "jax", with_jax),
]


class Limit:
    """Ends the process when a part takes too long; a call that never gives Python back is ended a little later."""

    def __init__(self, seconds):
        self.seconds = min(seconds, int(os.environ.get("GPU_LIMIT_S", seconds)))
        self.timer = threading.Timer(self.seconds, self.end)
        self.timer.daemon = True

    def end(self):
        row(part_name, False, "timed out: this part, and what it measures, is missing")
        faulthandler.dump_traceback()
        os._exit(124)

    def __enter__(self):
        faulthandler.dump_traceback_later(self.seconds + 3, exit=True)
        self.timer.start()

    def __exit__(self, *error):
        self.timer.cancel()
        faulthandler.cancel_dump_traceback_later()


def begin(device):
    global stoker, torch
    import stoker
    try:
        import torch
    except ImportError:
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(device)
    else:
        torch = None


def run_part(part, device, path):
    global part_name
    part_name, seconds, library, run = part
    start = time.monotonic()
    with Limit(seconds):
        put_line({"begin": part_name})
        if library == "torch" and torch is None or not importlib.util.find_spec(library):
            row(part_name, True, f"not run: no {library} with CUDA")
        else:
            run(path, device)
            gc.collect()
        put_line({"end": part_name, "seconds": round(time.monotonic() - start, 3)})


def main():
    if sys.argv[1:] == ["--parts"]:
        print(*(part[0] for part in PARTS), sep="\n")
        return 0
    device, path, wanted = f"cuda:{sys.argv[1]}", sys.argv[2], sys.argv[3:]
    try:
        with Limit(40):
            begin(device)
        for part in PARTS:
            if not wanted or part[0] in wanted:
                run_part(part, device, path)
    except Exception as e:
        traceback.print_exc()
        row(part_name, False, " ".join(f"{type(e).__name__}: {e}".split())[:300])
        sys.stderr.flush()
        os._exit(3)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
