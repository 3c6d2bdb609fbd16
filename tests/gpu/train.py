# SPDX-License-Identifier: Apache-2.0
"""The package on a GPU, as a trainer with torch uses it: rows for the table of tests/gpu/run.

usage: train.py DEVICE FILE     the file is from pipeline --write
"""
import collections
import gc
import sys
import time

import stoker

try:
    import torch
except ImportError:
    torch = None

WORDS = 16384
KEYS = {"group": "fixed", "length": "t", "fields": [{"name": "x"}], "seed": 5}
failed = False


def row(what, ok, text):
    global failed
    failed |= not ok
    print(f"{what:44}  {text}{'' if ok else '   <-- NOT OK'}", flush=True)


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
    row("torch, host time of next()", True, f"{len(times)} calls: p50 {times[len(times) // 2]:.1f} us, "
        f"p99 {times[len(times) * 99 // 100]:.1f} us")


def no_such_device(path):
    try:
        loader(path, "none", device="cuda:999").close()
        row("a device that is not there", False, "was accepted")
    except stoker.DeviceError as e:
        row("a device that is not there", "999" in str(e), str(e))


def main():
    device, path = f"cuda:{sys.argv[1]}", sys.argv[2]
    if torch is None or not torch.cuda.is_available():
        print("the package on the device: skipped, no torch with CUDA")
        return 0
    torch.cuda.set_device(device)
    no_such_device(path)
    for part in epochs, second_stream, own_copies, graphs, host_time:
        part(path, device)
        gc.collect()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
