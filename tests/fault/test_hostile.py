# SPDX-License-Identifier: Apache-2.0
"""Clients that lie: bytes on the socket, descriptors, and nonsense in their seat file."""
import array
import json
import os
import random
import socket
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
import harness  # noqa: E402
from harness import Case, Raw, Refused, SeatFile, attach_parameters, batches, random_lengths, wait_until  # noqa: E402


class Bytes(Case):
    def setUp(self):
        super().setUp()
        self.data, _ = self.dataset(random_lengths(200))
        self.d = self.daemon("streams:\n  - {name: s, data: %s, rows: 4}\n" % self.data)
        self.good = self.attached(self.d, stream="s", job="good")
        self.good.run(3)
        self.before = harness.settled_fds(self.d.pid)

    def tearDown(self):
        """Whatever the test did: the daemon lives, holds what it held, and serves the others."""
        self.assertIsNone(self.d.process.poll(), "stokerd died")
        self.assertEqual(len(batches(self.good.run(20))), 20)
        wait_until(lambda: len(self.d.jobs()) == 1, what="the end of all other jobs")
        wait_until(lambda: harness.footprint(self.d.pid)["fds"] <= self.before, what="its descriptors")

    def ended(self, *chunks):
        """These bytes end the connection."""
        raw = self.raw(self.d)
        try:
            for chunk in chunks:
                raw.send(chunk)
        except (BrokenPipeError, ConnectionResetError):
            return
        self.assertTrue(raw.hung_up(5), chunks[0][:60])
        raw.close()

    def test_garbage_ends_only_its_connection(self):
        r = random.Random(3)
        for text in (b"\0", b"garbage\0", b"{\0", b"[1, 2]\0", b"42\0", b"null\0", b'"text"\0', b"\xff\xfe\0",
                     b"{}\0", b'{"method": 7}\0', b'{"method": "io.stoker.Jobs", "parameters": 3}\0',
                     b'{"method": "io.stoker.Jobs", "parameters": []}\0', b'{"method": null}\0',
                     b'{"method": "io.stoker.Jobs"} {"method": "io.stoker.Jobs"}\0',
                     b'{"method": "io.stoker.Jobs", "parameters": {"x": 1' + b"0" * 40 + b"}}\0",
                     b"GET / HTTP/1.1\r\nHost: x\r\n\r\n\0",
                     bytes(r.randrange(256) for _ in range(4096)) + b"\0"):
            self.ended(text)

    def test_a_message_of_five_megabytes_ends_its_connection(self):
        self.ended(b'{"method": "', b"x" * (5 << 20), b'"}\0')

    def test_a_message_without_end_ends_its_connection(self):
        raw = self.raw(self.d)
        try:
            for _ in range(200):
                raw.send(b"x" * 65536)
        except (BrokenPipeError, ConnectionResetError):
            pass
        else:
            self.fail("13 MB were taken")

    def test_deep_json_ends_its_connection(self):
        self.ended(b'{"method": "io.stoker.Jobs", "parameters": {"x": ' + b"[" * 100000 + b"]" * 100000 + b"}}\0")
        self.ended(b'{"a":' * 100000 + b"\0")

    def test_text_with_nul_bytes_and_broken_utf8_is_refused(self):
        for text in (b'"a\\u0000b"', b'"\xc3\x28"', b'"\\ud800"'):
            raw = self.raw(self.d)
            raw.send(b'{"method": "io.stoker.Attach", "parameters": {"stream": ' + text + b', "job": "j"}}\0')
            try:
                with self.assertRaises(Refused):
                    raw.reply()
            except EOFError:
                pass
            raw.close()

    def test_each_parameter_of_a_wrong_type_is_refused_by_name_or_ignored(self):
        values = [None, True, -1, 1 << 62, 1e300, "text", "", [], {}, [[[]]], {"a": {"b": 1}}, "x" * 100000]
        seats = 0
        for name in attach_parameters():
            for value in values:
                raw = self.raw(self.d)
                parameters = attach_parameters(stream="s", job="types")
                parameters[name] = value
                try:
                    raw.call("io.stoker.Attach", parameters, more=True)
                    seats += 1
                except Refused as e:
                    self.assertTrue(e.reason, (name, value))
                    self.assertLess(len(e.reason), 1100)
                raw.close()
                wait_until(lambda: len(self.d.jobs()) == 1, what="the end of the attach")
        self.assertGreater(seats, 0, "some of them mean the default")
        for method in ("Detach", "Seek"):
            for value in values:
                raw = self.raw(self.d)
                for parameters in ({"stream": value, "job": "x"}, {"stream": "s", "job": value},
                                   {"state": value}, {"stream": "s", "job": "x", "rank": value, "seat": value}):
                    with self.assertRaises(Refused, msg=(method, parameters)):
                        raw.call("io.stoker." + method, parameters)
                raw.close()

    def test_specs_of_wrong_types_are_refused(self):
        for spec in ({"rows": {}}, {"rows": [4]}, {"edges": {}}, {"edges": [[1]]}, {"fields": 3},
                     {"fields": [3]}, {"fields": [{"name": []}]}, {"order": 1}, {"seed": 1.5},
                     {"edges": list(range(1, 2000))}, {"fields": [{"name": "input_ids"}] * 100},
                     {"data": "/etc/passwd"}, {"name": "other"}, {"x" * 5000: 1}):
            raw = self.raw(self.d)
            with self.assertRaises(Refused, msg=str(spec)[:80]) as e:
                raw.attach(stream="s", spec=spec)
            self.assertLess(len(e.exception.reason), 1100)
            raw.close()

    def test_253_descriptors_on_one_message_are_not_kept(self):
        fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(253)]
        for text in (b'{"method": "io.stoker.Jobs"}\0', b"x"):
            s = socket.socket(socket.AF_UNIX)
            s.connect(self.d.socket)
            s.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
            s.settimeout(2)
            try:
                s.recv(1000)
            except (ConnectionResetError, TimeoutError):
                pass
            self.assertLess(harness.footprint(self.d.pid)["fds"], self.before + 20)
            s.close()
        for fd in fds:
            os.close(fd)

    def test_descriptors_on_every_message_are_closed(self):
        raw = self.raw(self.d)
        null = os.open("/dev/null", os.O_RDONLY)
        for _ in range(50):
            raw.socket.sendmsg([b'{"method": "io.stoker.Jobs"}\0'],
                               [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * 4))])
            raw.reply()
        self.assertLess(harness.footprint(self.d.pid)["fds"], self.before + 20)
        os.close(null)
        raw.close()

    def test_half_messages_and_hang_ups_leave_nothing(self):
        whole = json.dumps({"method": "io.stoker.Attach", "more": True,
                            "parameters": attach_parameters(stream="s", job="half")}).encode() + b"\0"
        for cut in (0, 1, 10, len(whole) // 2, len(whole) - 1, len(whole)):
            raw = Raw(self.d.socket)
            raw.send(whole[:cut])
            raw.close()

    def test_200_idle_connections_disturb_nobody(self):
        idle = [Raw(self.d.socket) for _ in range(200)]
        t = self.attached(self.d, stream="s", job="between")
        self.assertEqual(len(batches(t.run(30))), 30)
        t.end()
        for raw in idle:
            raw.close()

    def test_who_does_not_read_its_replies_is_ended_and_holds_nobody_up(self):
        raw = self.raw(self.d)
        raw.socket.settimeout(2)
        call = b'{"method": "org.varlink.service.GetInterfaceDescription", ' \
               b'"parameters": {"interface": "io.stoker"}}\0' * 100
        start = time.monotonic()
        try:
            for _ in range(100):
                raw.send(call)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            pass
        self.assertEqual(len(batches(self.good.run(5))), 5)
        self.assertLess(time.monotonic() - start, 10)
        self.d.wait_log("ended")


class Seat(Case):
    """A client that writes what it likes into the file that it may write."""

    def setUp(self):
        super().setUp()
        self.data, _ = self.dataset(random_lengths(200))
        self.d = self.daemon()
        self.good = self.attached(self.d, self.data, job="good", keys=["rows=4"])
        self.good.run(3)
        self.bad = self.raw(self.d)
        self.bad.attach(spec={"data": self.data, "rows": 4, "prefetch": 4}, job="bad")
        self.d.wait_full("bad")
        self.seat = SeatFile(self.bad)
        self.addCleanup(self.seat.close)
        self.lent = self.seat.published()
        self.assertEqual(len(self.lent), 4)

    def ended(self, *says):
        self.assertTrue(self.bad.hung_up(5), "the seat was not ended")
        line = [x for x in self.d.log().splitlines() if "ended:" in x][-1]
        self.assertIn("pid %d" % os.getpid(), line)
        for word in says:
            self.assertIn(str(word), line)
        wait_until(lambda: len(self.d.jobs()) == 1, what="the end of its job")
        self.assertEqual(self.d.jobs()[0]["job"], "good")
        self.assertEqual(len(batches(self.good.run(20))), 20)

    def test_honest_releases_are_fine(self):
        for i, (slot, index) in enumerate(reversed(self.lent)):
            self.seat.put(i, slot, index)
            self.seat.set_tail(i + 1)
        self.d.wait_full("bad")
        self.assertEqual(self.d.queue("bad")["steps_published"], 8)

    def test_an_index_that_jumps_ends_the_seat(self):
        self.seat.set_tail(1 << 20)
        self.ended("further than the ring is long")

    def test_an_index_that_moves_back_ends_the_seat(self):
        slot, index = self.lent[0]
        self.seat.put(0, slot, index)
        self.seat.set_tail(1)
        self.d.wait_full("bad")
        self.seat.set_tail(0)
        self.ended("further than the ring is long")

    def test_a_double_release_ends_the_seat(self):
        slot, index = self.lent[1]
        self.seat.put(0, slot, index)
        self.seat.put(1, slot, index)
        self.seat.set_tail(2)
        self.ended("slot %d" % slot, "does not hold")

    def test_a_slot_out_of_range_ends_the_seat(self):
        self.seat.put(0, 4000000, 0)
        self.seat.set_tail(1)
        self.ended("slot 4000000")

    def test_an_entry_that_does_not_lend_the_slot_ends_the_seat(self):
        slot, index = self.lent[0]
        self.seat.put(0, slot, index + 1)
        self.seat.set_tail(1)
        self.ended("does not hold")

    def test_random_files_end_the_seat_or_do_nothing(self):
        # The header too: the daemon keeps its own copy of all that it put there.
        r = random.Random(5)
        self.seat.seat[:] = bytes(r.randrange(256) for _ in range(len(self.seat.seat)))
        os.write(self.seat.kick, struct.pack("<Q", 1))
        self.d.call("Queues")
        self.ended()

    def test_a_header_of_zeros_does_not_hurt(self):
        self.seat.seat[:128] = bytes(128)
        self.seat.set_tail(0)
        slot, index = self.lent[0]
        struct.pack_into("<Q", self.seat.seat, self.seat.ring, index << 32 | slot)
        self.seat.set_tail(1)
        wait_until(lambda: self.d.queue("bad")["steps_published"] == 5, what="the next batch")

    def test_a_kick_descriptor_that_is_full_or_blocking_holds_nobody_up(self):
        os.set_blocking(self.seat.kick, True)
        for _ in range(3):
            try:
                os.set_blocking(self.seat.kick, False)
                os.write(self.seat.kick, struct.pack("<Q", 0xfffffffffffffffe))
            except BlockingIOError:
                pass
            os.set_blocking(self.seat.kick, True)
        self.assertEqual(len(batches(self.good.run(20))), 20)
        self.assertEqual(self.d.call("Status")["jobs"], 2)

    def test_endless_kicks_do_not_starve_the_others(self):
        end = time.monotonic() + 0.5
        kicks = 0
        while time.monotonic() < end:
            os.write(self.seat.kick, struct.pack("<Q", 1))
            kicks += 1
            if kicks == 1000:
                self.assertEqual(len(batches(self.good.run(10))), 10)
        self.assertEqual(len(batches(self.good.run(20))), 20)

    def test_holes_in_the_slots_file_end_no_other_feed(self):
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        fallocate = libc.fallocate
        fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
        size = os.fstat(self.bad.fds[1]).st_size
        self.assertEqual(fallocate(self.bad.fds[1], 3, 0, size), 0, "KEEP_SIZE | PUNCH_HOLE")
        for i, (slot, index) in enumerate(self.lent):
            self.seat.put(i, slot, index)
        self.seat.set_tail(4)
        self.assertEqual(len(batches(self.good.run(20))), 20)
        self.assertIsNone(self.d.process.poll())


if __name__ == "__main__":
    harness.main()
