# SPDX-License-Identifier: Apache-2.0
"""Exceptions: the daemon's sentence, and a class by what to do about it."""
import errno

from . import _stoker


class Error(Exception):
    """Anything that stoker reports; the text names place, value and what is allowed."""


class SpecError(Error, ValueError):
    """A key, an option or a state is wrong or does not fit the data."""


class NotFound(Error, FileNotFoundError):
    """No such stream, path or shards."""


class DataError(Error):
    """A shard is damaged, was changed, or cannot be read."""


class JobError(Error):
    """The seat is taken, or the job was created with other values."""


class DeviceError(Error, RuntimeError):
    """The CUDA device is not there or refused something: CUDA's name for it, and what was being done."""


class LimitError(Error):
    """A limit of memory, descriptors or rights, named in the text."""


class Disconnected(Error, ConnectionError):
    """The daemon is gone and did not come back, or there is none."""


class VersionError(Error):
    """Daemon and library do not fit together."""


class Timeout(Error, TimeoutError):
    """Nothing came in time; the text names who is waited for."""


class ForkedError(Error):
    """A loader of the process that forked was used in its child."""


class AgreementError(Error):
    """The ranks of a job do not read the same data in the same way."""


class NoticeWarning(UserWarning):
    """Something was asked for and is not so, such as fewer slots than prefetch."""


class SlotsHeldWarning(UserWarning):
    """Python references hold every slot, so no batch can come."""


_stoker.set_errors({
    0: Error,
    errno.EINVAL: SpecError,
    errno.ENOENT: NotFound,
    errno.ENOTDIR: NotFound,
    errno.ENODATA: DataError,
    errno.EBADMSG: DataError,
    errno.EIO: DataError,
    errno.ESTALE: DataError,
    errno.ERANGE: DataError,
    errno.EILSEQ: DataError,
    errno.EBUSY: JobError,
    errno.EEXIST: JobError,
    errno.ENOMEM: LimitError,
    errno.EMFILE: LimitError,
    errno.ENFILE: LimitError,
    errno.EPERM: LimitError,
    errno.EACCES: LimitError,
    errno.ENOSPC: LimitError,
    errno.EPIPE: Disconnected,
    errno.ECONNREFUSED: Disconnected,
    errno.ECONNRESET: Disconnected,
    errno.EPROTO: VersionError,
    errno.ETIMEDOUT: Timeout,
    errno.ECHILD: ForkedError,
    errno.ENODEV: DeviceError,
    errno.EBADF: Error,
})
