# SPDX-License-Identifier: Apache-2.0
"""Batch.to() and Batch.pin(): rare enough, and different enough by framework, to be Python."""
import collections
import sys

# Host batches whose copies to a device may still run, each with the event after its copies.
_in_flight = collections.deque()


def _map(batch, change):
    changed = {name: change(value) if hasattr(value, "to") else value for name, value in batch.items()}
    if all(changed[name] is value for name, value in batch.items()):
        return batch
    own = (getattr(batch, name, None) for name in ("sample_ids", "lengths", "row_first", "segment_from"))
    return batch._moved(changed, *(t.clone() if hasattr(t, "clone") else t for t in own))


def _reap():
    while _in_flight and _in_flight[0][0].query():
        _in_flight.popleft()


def to(batch, device, non_blocking=False):
    torch = sys.modules.get("torch")
    if torch is None:
        raise TypeError("Batch.to() is for torch tensors")
    _reap()
    moved = _map(batch, lambda t: t.to(device, non_blocking=non_blocking))
    if non_blocking and moved is not batch and torch.device(device).type == "cuda":
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        _in_flight.append((event, batch))  # the slot must not be refilled under the copy
    return moved


def pin(batch):
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return batch
    return _map(batch, lambda t: t if t.is_cuda else t.pin_memory())
