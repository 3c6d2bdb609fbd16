# SPDX-License-Identifier: Apache-2.0
"""The control socket as any Varlink client sees it, and stokerctl on top of it."""
import fcntl
import json
import os
import subprocess
import time

import harness
from harness import Case, Refused, SLOW, attach_parameters, need, random_lengths, wait_until


class Varlink(Case):
    def setUp(self):
        super().setUp()
        self.data, _ = self.dataset(random_lengths(60))
        self.d = self.daemon("streams:\n  - {name: s, data: %s, rows: 4}\n" % self.data)
        self.r = self.raw(self.d)

    def test_get_info_names_the_interfaces(self):
        info = self.r.call("org.varlink.service.GetInfo")
        self.assertEqual(set(info), {"vendor", "product", "version", "url", "interfaces"})
        self.assertEqual(info["interfaces"], ["org.varlink.service", "io.stoker"])

    def test_the_interface_description_is_the_file_of_the_source(self):
        text = self.r.call("org.varlink.service.GetInterfaceDescription", {"interface": "io.stoker"})
        root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
        with open(os.path.join(root, "proto", "io.stoker.varlink")) as f:
            self.assertEqual(text["description"].strip(), f.read().strip())
        own = self.r.call("org.varlink.service.GetInterfaceDescription", {"interface": "org.varlink.service"})
        self.assertIn("method GetInfo", own["description"])

    def test_what_does_not_exist_is_a_varlink_error_and_the_connection_goes_on(self):
        for method, parameters, error, word in (
                ("io.stoker.Nothing", {}, "org.varlink.service.MethodNotFound", "io.stoker.Nothing"),
                ("nothing", {}, "org.varlink.service.MethodNotFound", "nothing"),
                ("org.varlink.service.GetInterfaceDescription", {"interface": "io.nobody"},
                 "org.varlink.service.InterfaceNotFound", "io.nobody"),
                ("org.varlink.service.GetInterfaceDescription", {},
                 "org.varlink.service.InvalidParameter", "interface")):
            with self.assertRaises(Refused) as e:
                self.r.call(method, parameters)
            self.assertEqual(e.exception.name, error)
            self.assertIn(word, str(e.exception))
        self.r.call("io.stoker.Status")

    def test_several_calls_in_one_write_are_answered_in_order(self):
        text = b"".join(json.dumps({"method": "io.stoker." + m}).encode() + b"\0"
                        for m in ("Status", "Jobs", "Queues", "Streams"))
        self.r.send(text)
        self.assertIn("pid", self.r.reply())
        self.assertEqual(self.r.reply(), {"jobs": []})
        self.assertEqual(self.r.reply(), {"queues": []})
        self.assertEqual(self.r.reply()["streams"][0]["name"], "s")

    def test_a_call_in_single_bytes_is_answered_too(self):
        for b in b'{"method":"io.stoker.Jobs"}\0':
            self.r.send(bytes([b]))
        self.assertEqual(self.r.reply(), {"jobs": []})

    def test_replies_hold_what_the_interface_says(self):
        t = self.attached(self.d, stream="s")
        t.do("next")
        for method, key in (("Jobs", "jobs"), ("Queues", "queues"), ("Streams", "streams")):
            self.assertEqual(len(self.d.call(method)[key]), 1)
            self.check_type(method[:-1], self.d.call(method)[key][0])
        for seat in self.d.queue("job")["seats"]:
            self.check_type("Seat", seat)

    def check_type(self, name, item):
        """Every field of a type of the interface is there, and of its kind."""
        text = self.r.call("org.varlink.service.GetInterfaceDescription",
                           {"interface": "io.stoker"})["description"]
        body = text.split("type %s (" % name)[1].split(")")[0]
        kinds = {"int": int, "string": str, "bool": bool, "object": dict}
        fields = dict(f.split(":") for f in body.replace("\n", " ").replace(" ", "").split(","))
        self.assertLessEqual(set(item), set(fields), name)
        for field, kind in fields.items():
            if kind.startswith("?") and field not in item:
                continue
            self.assertIn(field, item, name)
            kind = kind.lstrip("?")
            named = list if kind.startswith("[]") else dict
            self.assertIsInstance(item[field], kinds.get(kind, named), (name, field))
            if named is dict and kind not in kinds:
                self.check_type(kind, item[field])

    def test_an_attach_lowers_the_weight_of_its_stream_and_does_not_raise_it(self):
        d = self.daemon("streams:\n  - {name: s, data: %s, rows: 4, weight: 5}\n" % self.data, name="weighed")
        for job, where, keys, weight in (("as-configured", {"stream": "s"}, (), 5),
                                         ("lower", {"stream": "s"}, ("weight=2",), 2),
                                         ("higher", {"stream": "s"}, ("weight=9",), 5),
                                         ("path", {"path": self.data}, ("weight=9", "rows=4"), 1)):
            self.attached(d, job=job, keys=keys, **where)
            self.assertEqual(d.queue(job)["weight"], weight, job)

    def test_attach_says_how_far_it_is_at_least_every_second(self):
        self.r.message("io.stoker.Attach",
                       attach_parameters(spec={"data": self.data, "rows": 8192, "edges": [4096],
                                               "pad_to": "edge", "prefetch": 4, "lock": "try"}), more=True)
        progress, last = [], time.monotonic()
        while True:
            m = self.r.receive()
            self.assertLess(time.monotonic() - last, 2)
            last = time.monotonic()
            if "error" in m:
                raise Refused(m["error"], m["parameters"])
            if not m.get("continues"):
                break
            progress.append(m["parameters"]["progress"])
        for p in progress:
            self.assertEqual(set(p), {"stage", "done", "total"})
            self.assertLessEqual(p["done"], p["total"])
        self.assertEqual(len(self.r.fds), 5)

    def test_the_descriptors_of_an_attach_are_close_on_exec_sealed_and_of_the_stated_sizes(self):
        reply = self.r.attach(stream="s")
        control, slots, seat = self.r.fds[:3]
        self.assertEqual([os.fstat(f).st_size for f in (control, slots, seat)],
                         [reply["control_size"], reply["slots_size"], reply["seat_size"]])
        # GET_SEALS: SEAL 1, SHRINK 2, GROW 4
        for fd in (slots, seat):
            self.assertEqual(fcntl.fcntl(fd, 1034) & 7, 7)
            with self.assertRaises(OSError):
                os.ftruncate(fd, 0)
        with self.assertRaises(OSError):
            harness.mmap.mmap(control, 4096, harness.mmap.MAP_SHARED,
                              harness.mmap.PROT_READ | harness.mmap.PROT_WRITE)
        with self.assertRaises(OSError):
            os.write(control, b"x")


class Ctl(Case):
    def setUp(self):
        super().setUp()
        need("stokerctl")
        self.data, _ = self.dataset(random_lengths(60))
        self.d = self.daemon("streams:\n  - {name: s, data: %s, rows: 4, prefetch: 4}\n" % self.data)

    def json(self, *args):
        return json.loads(self.ctl(self.d, "--json", *args))

    def test_queues_show_depth_leases_and_who_holds_the_oldest(self):
        t = self.attached(self.d, stream="s")
        self.d.wait_full("job")
        t.do("next")
        t.do("next")
        reply = self.json("queues")
        q = (reply[0] if isinstance(reply, list) else reply)
        q = q.get("queues", q)[0]
        self.assertEqual((q["slots"], q["ready"], q["leased"]), (4, 2, 2))
        self.assertEqual((q["steps_published"], q["steps_consumed"]), (4, 2))
        self.assertEqual(q["seats"][0]["pid"], t.pid)
        text = self.ctl(self.d, "queues")
        self.assertIn(str(t.pid), text)
        self.assertIn("s", text)

    def test_status_streams_and_jobs_are_tables_for_people(self):
        self.attached(self.d, stream="s", job="train-7")
        self.assertIn(str(self.d.pid), self.ctl(self.d, "status"))
        self.assertIn(self.data, self.ctl(self.d, "streams"))
        self.assertIn("train-7", self.ctl(self.d, "jobs"))

    def test_detach_ends_a_rank_with_its_error_and_leaves_the_other(self):
        a, b = [self.attached(self.d, stream="s", rank=r, world=2) for r in range(2)]
        self.ctl(self.d, "detach", "s", "job", "0")
        reply = a.do("run", 0)
        self.assertEqual(reply["r"], -32)
        self.assertEqual(len(harness.batches(b.run(5))), 5)
        self.ctl(self.d, "detach", "s", "job")
        wait_until(lambda: not self.d.jobs(), what="the end of the job")

    def test_detaching_nobody_is_an_error(self):
        self.ctl(self.d, "detach", "s", "nobody", status=1)

    def test_no_daemon_is_an_error_that_names_the_socket(self):
        path = self.path("nobody.sock")
        p = subprocess.run([need("stokerctl"), "status", "--socket", path], capture_output=True, text=True,
                           timeout=SLOW)
        self.assertEqual(p.returncode, 1)
        self.assertIn(path, p.stderr)

    def test_an_unknown_command_is_wrong_usage(self):
        p = subprocess.run([need("stokerctl"), "queuez"], capture_output=True, text=True, timeout=SLOW)
        self.assertEqual(p.returncode, 2)
        self.assertIn("queuez", p.stderr)


if __name__ == "__main__":
    harness.main()
