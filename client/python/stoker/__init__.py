# SPDX-License-Identifier: Apache-2.0
"""stoker: batches for trainers through shared memory.

    loader = stoker.Loader("shards/", tokens=16384, buckets=8, seed=17)
    for batch in loader:
        loss = model(**batch).loss
"""
import collections.abc

from ._cache import cache, write
from ._errors import (AgreementError, DataError, DeviceError, Disconnected, Error, ForkedError, JobError, LimitError,
                      NotFound, NoticeWarning, SlotsHeldWarning, SpecError, Timeout, VersionError)
from ._loader import EvalLoader, Loader, eval_loader
from ._ranks import Place
from ._shapes import Shape
from ._stoker import Batch, Tensor, __version__

collections.abc.Mapping.register(Batch)

__all__ = ["AgreementError", "Batch", "DataError", "DeviceError", "Disconnected", "Error", "EvalLoader",
           "ForkedError", "JobError", "LimitError", "Loader", "NotFound", "NoticeWarning", "Place", "Shape",
           "SlotsHeldWarning", "SpecError", "Tensor", "Timeout", "VersionError", "cache", "eval_loader", "write"]
