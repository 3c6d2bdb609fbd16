# SPDX-License-Identifier: Apache-2.0
"""A file system for tests whose one file stops answering: storage that hangs. Needs root and /dev/fuse.

Speaks the kernel's FUSE protocol by itself: the few calls that reading one file takes.
"""
import ctypes
import errno
import os
import stat
import struct
import threading

INIT, LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, FLUSH, OPENDIR, RELEASEDIR = 26, 1, 2, 3, 14, 15, 18, 25, 27, 29
STATFS, ACCESS, INTERRUPT, BATCH_FORGET, READDIR = 17, 34, 36, 42, 28
HEADER, REPLY = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
libc = ctypes.CDLL(None, use_errno=True)


def _dirent(number, name, kind, next_off):
    entry = struct.pack("<QQII", number, next_off, len(name), kind) + name
    return entry + b"\0" * (-len(entry) % 8)


class SlowFile:
    """The file `source` as `folder`/`name`. While `closed` is set, reads are not answered."""

    def __init__(self, folder, source, name):
        self.folder, self.name = folder, name.encode()
        with open(source, "rb") as f:
            self.data = f.read()
        self.closed, self.held, self.lock = False, [], threading.Lock()
        self.reads = 0
        self.fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = b"fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,max_read=65536" % self.fd
        if libc.mount(b"slow", os.fsencode(folder), b"fuse", 0, options):
            code = ctypes.get_errno()
            os.close(self.fd)
            raise OSError(code, os.strerror(code), folder)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def open_gate(self):
        with self.lock:
            self.closed, held, self.held = False, self.held, []
        for request in held:
            self._read(*request)

    def end(self):
        if self.fd < 0:
            return
        self.open_gate()
        libc.umount2(os.fsencode(self.folder), 2)
        self.thread.join(10)
        os.close(self.fd)
        self.fd = -1

    def _attr(self, number):
        directory = number == 1
        size = 4096 if directory else len(self.data)
        mode = stat.S_IFDIR | 0o755 if directory else stat.S_IFREG | 0o644
        return struct.pack("<QQQQQQIIIIIIIIII", number, size, (size + 511) // 512, 1, 1, 1, 0, 0, 0, mode, 1, 0, 0, 0,
                           4096, 0)

    def _say(self, unique, data=b"", error=0):
        try:
            os.write(self.fd, REPLY.pack(REPLY.size + len(data), -error, unique) + data)
        except OSError:
            pass  # the request was given up

    def _read(self, unique, offset, size):
        self._say(unique, self.data[offset:offset + size])

    def _answer(self, code, unique, node, body):
        if code == INIT:
            _, minor, readahead, _ = struct.unpack_from("<IIII", body)
            self._say(unique, struct.pack("<IIIIHHIIHHI28x", 7, min(minor, 31), readahead, 0, 0, 0, 65536, 1, 0, 0, 0))
        elif code == LOOKUP and body.rstrip(b"\0") == self.name:
            self._say(unique, struct.pack("<QQQQII", 2, 0, 3600, 3600, 0, 0) + self._attr(2))
        elif code == LOOKUP:
            self._say(unique, error=errno.ENOENT)
        elif code == GETATTR:
            self._say(unique, struct.pack("<QII", 3600, 0, 0) + self._attr(node))
        elif code in (OPEN, OPENDIR):
            self._say(unique, struct.pack("<QII", 0, 0, 0))
        elif code == READDIR:
            offset, size = struct.unpack_from("<8xQI", body)
            self._say(unique, _dirent(2, self.name, 8, 1)[:size] if offset == 0 else b"")
        elif code == READ:
            offset, size = struct.unpack_from("<8xQI", body)
            with self.lock:
                self.reads += 1
                if self.closed:
                    self.held.append((unique, offset, size))
                    return
            self._read(unique, offset, size)
        elif code in (RELEASE, RELEASEDIR, FLUSH, ACCESS):
            self._say(unique)
        elif code not in (FORGET, BATCH_FORGET, INTERRUPT):
            self._say(unique, error=errno.ENOSYS)

    def _serve(self):
        while True:
            try:
                request = os.read(self.fd, 1 << 20)
            except OSError as e:
                if e.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                return  # unmounted
            _, code, unique, node, *_ = HEADER.unpack_from(request)
            self._answer(code, unique, node, request[HEADER.size:])
