# SPDX-License-Identifier: Apache-2.0
"""What cannot be served is refused with the place, the value and what is allowed; nothing stays."""
import errno
import os
import resource
import struct
import subprocess

import harness
from harness import Case, NOBODY, SLOW, batches, pack, ragged, random_lengths, wait_until, write_shard


class Refusals(Case):
    def setUp(self):
        super().setUp()
        self.data, _ = self.dataset(random_lengths(60, low=5))
        self.conf = "".join("  - {name: %s, data: %s, rows: 4}\n" % (n, self.data)
                            for n in ("gsm8k", "wikipedia", "code"))
        self.d = self.daemon("memory: 64MiB\nstreams:\n" + self.conf)
        # The first work starts what stays: threads of the event loop, and their memory.
        self.attached(self.d, self.data, job="warm", keys=["rows=4"]).end()
        self.d.wait_idle()
        self.before = harness.settled_fds(self.d.pid)

    def footprint(self):
        return harness.footprint(self.d.pid)["fds"]

    def check(self, *says, code=None, **options):
        """The attach is refused with all of these words; the daemon is as before and serves on."""
        t = self.trainer(self.d, **options)
        self.assertLess(t.hello["r"], 0, t.hello)
        self.assertNotEqual(t.process.wait(SLOW), 0)
        if code:
            self.assertEqual(t.hello["r"], -code, t.error)
        for word in says:
            self.assertIn(str(word), t.error)
        self.settle()
        return t.error

    def settle(self):
        self.d.wait_idle()
        wait_until(lambda: self.footprint() <= self.before, what="the daemon's descriptors")
        status = self.d.call("Status")
        self.assertEqual((status["jobs"], status["seats"], status["memory_used"]), (0, 0, 0))

    def keys(self, *keys, path=None):
        return {"path": path or self.data, "keys": list(keys)}


class Names(Refusals):
    def test_an_unknown_stream_is_refused_and_the_nearest_suggested(self):
        self.check("gsm8l", '"gsm8k"', code=errno.ENOENT, stream="gsm8l")

    def test_an_unknown_stream_far_from_all_says_where_to_look(self):
        self.check("qqqqqqqq", "stokerctl streams", code=errno.ENOENT, stream="qqqqqqqq")

    def test_an_unknown_key_is_refused_and_the_nearest_suggested(self):
        self.check("rowz", '"rows"', code=errno.EINVAL, **self.keys("rowz=4"))
        self.check("prefetsh", '"prefetch"', code=errno.EINVAL, **self.keys("prefetsh=4"))

    def test_keys_of_other_loaders_are_refused_with_ours(self):
        for foreign, ours in (("batch_size=32", "rows"), ("shuffle=true", "order"),
                              ("drop_last=true", "tail"), ("num_workers=4", "workers"),
                              ("max_tokens=4096", "tokens"), ("pin_memory=true", "page-locked"),
                              ("num_buckets=4", "buckets"), ("pad_to_multiple_of=8", "multiple_of")):
            self.check(foreign.split("=")[0], ours, code=errno.EINVAL, **self.keys(foreign))

    def test_an_unknown_key_of_a_field_is_refused(self):
        self.check("dtyp", '"dtype"', code=errno.EINVAL,
                   **self.keys("fields=[{name: input_ids, dtyp: i64}]"))

    def test_a_field_that_is_not_stored_is_refused_with_those_that_are(self):
        self.check("input_idz", "input_ids", code=errno.EINVAL, **self.keys("fields=[{name: input_idz}]"))

    def test_a_job_name_with_control_characters_is_refused(self):
        self.check("job", job="a\tb", **self.keys("rows=4"))


class Values(Refusals):
    def test_values_out_of_range_are_refused_with_the_range(self):
        for word, *says in (("rows=0", "rows", "0", "1", "65536"), ("rows=65537", "65537", "65536"),
                            ("rows=-3", "-3", "65536"), ("rows=4.5", "4.5"), ("rows=many", "many"),
                            ("prefetch=1", "prefetch", "2", "1024"), ("prefetch=1025", "1025"),
                            ("buckets=0", "buckets", "256"), ("order=random", "random", "none", "full"),
                            ("tail=keep", "keep", "short", "pad", "drop"), ("epochs=-1", "-1"),
                            ("seed=18446744073709551616", "18446744073709551615"),
                            ("edges=[8, 8]", "8", "ascending"), ("edges=[]", "edges"),
                            ("multiple_of=0", "multiple_of"), ("accumulate=0", "accumulate")):
            self.check(*says, code=errno.EINVAL, **self.keys(word))

    def test_rows_and_tokens_together_are_refused(self):
        self.check("rows", "tokens", code=errno.EINVAL, **self.keys("rows=4", "tokens=512"))

    def test_edges_that_do_not_end_at_max_length_are_refused_with_both(self):
        self.check("64", "128", code=errno.EINVAL, **self.keys("edges=[32, 64]", "max_length=128"))

    def test_a_budget_smaller_than_one_sample_is_refused(self):
        self.check("tokens", "16", code=errno.EINVAL, **self.keys("tokens=16"))

    def test_an_overlong_sample_under_error_is_refused_with_its_number(self):
        self.check("overlong", "sample", "16", code=errno.EINVAL,
                   **self.keys("max_length=16", "overlong=error"))

    def test_an_epoch_without_a_step_is_refused_with_the_numbers(self):
        path, _ = self.dataset([8, 8, 8], name="three")
        self.check("no step", "3 samples", "8", code=errno.EINVAL, world=8,
                   **self.keys("rows=1", path=path))
        self.check("no step", "3 samples", "drop", code=errno.EINVAL,
                   **self.keys("rows=4", "tail=drop", path=path))

    def test_a_pad_value_that_does_not_fit_its_type_is_refused(self):
        self.check("input_ids", "3000000000", "2147483647", code=errno.EINVAL,
                   **self.keys("fields=[{name: input_ids, dtype: i32, pad: 3000000000}]"))

    def test_a_world_of_none_and_ranks_out_of_range_are_refused(self):
        self.check("rank 5", "2", code=errno.EINVAL, rank=5, world=2, **self.keys())
        for changes, says in (({"world": 0}, "world"), ({"world": 2, "rank": 2}, "rank"),
                              ({"world": -1}, "-1"), ({"world": 65537}, "65536"), ({"rank": -1}, "rank"),
                              ({"replicas": 65}, "64"), ({"replicas": 0}, "replicas"),
                              ({"replicas": 2, "replica": 2}, "replica"), ({"job": ""}, "job"),
                              ({"job": "j" * 256}, "255")):
            raw = self.raw(self.d)
            with self.assertRaises(harness.Refused) as e:
                raw.attach(**dict({"spec": {"data": self.data}}, **changes))
            self.assertIn(says, e.exception.reason, changes)
            raw.close()
        self.settle()

    def test_versions_that_do_not_meet_are_refused_with_both(self):
        for changes, says in (({"protocol_min": 2, "protocol_max": 3}, ("2 to 3", "speaks 1")),
                              ({"layout": 99}, ("99", "has 1"))):
            raw = self.raw(self.d)
            with self.assertRaises(harness.Refused) as e:
                raw.attach(**dict({"spec": {"data": self.data}}, **changes))
            for word in says:
                self.assertIn(word, e.exception.reason)
            raw.close()
        self.settle()


class Data(Refusals):
    def shard(self, tensors, name="x.safetensors", folder="bad"):
        os.makedirs(self.path(folder), exist_ok=True)
        write_shard(self.path(folder, name), tensors)
        return self.path(folder)

    def test_a_place_without_shards_is_refused_with_the_place(self):
        self.check("/nowhere/at/all", code=errno.ENOENT, **self.keys(path="/nowhere/at/all"))
        os.mkdir(self.path("empty"))
        self.check(self.path("empty"), code=errno.ENOENT, **self.keys(path=self.path("empty")))
        glob = self.path("data", "*.nothing")
        self.check(glob, code=errno.ENOENT, **self.keys(path=glob))

    def test_a_dataset_without_samples_is_refused(self):
        path = self.shard(ragged("input_ids", []))
        self.check(path, "no samples", code=errno.EINVAL, **self.keys(path=path))

    def test_a_length_field_that_is_missing_is_refused_with_those_that_are_there(self):
        self.check("tokens_of_it", "input_ids", code=errno.EINVAL, **self.keys("length=tokens_of_it"))
        path = self.shard({"image": ("U8", [4, 3], bytes(12))})
        self.check("ragged", path, code=errno.EINVAL, **self.keys(path=path))

    def test_two_ragged_fields_need_a_length_field(self):
        path = self.shard(dict(ragged("a", [[1], [2, 3]]), **ragged("b", [[1, 2], [3]])))
        self.check("a, b", code=errno.EINVAL, **self.keys(path=path))
        t = self.attached(self.d, path, keys=["length=b", "rows=1", "prefetch=2"])
        self.assertEqual(len(batches(t.run(2))), 2)

    def test_fields_that_disagree_in_count_are_refused_with_both(self):
        path = self.shard(dict(ragged("input_ids", [[1], [2], [3]]), label=("I32", [5], pack("I32", [1] * 5))))
        self.check("input_ids", "3 samples", "label has 5", code=errno.EBADMSG, **self.keys(path=path))

    def test_shards_that_disagree_in_their_fields_are_refused_with_the_field(self):
        self.shard(ragged("input_ids", [[1]]), "a.safetensors")
        path = self.shard(ragged("input_ids", [[1]], "I64"), "b.safetensors")
        self.check("input_ids", "I32", "I64", code=errno.EINVAL, **self.keys(path=path))

    def test_a_bad_shard_among_good_ones_is_named(self):
        self.shard(ragged("input_ids", [[1]]), "a.safetensors")
        with open(self.path("bad", "b.safetensors"), "wb") as f:
            f.write(struct.pack("<Q", 1 << 60) + b"{}")
        path = self.path("bad")
        self.check("b.safetensors", "1 of 2", code=errno.EBADMSG, **self.keys(path=path))
        with open(self.path("bad", "b.safetensors"), "w") as f:
            f.write("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n")
        self.check("b.safetensors", "git-lfs", code=errno.EBADMSG, **self.keys(path=path))

    def test_a_shard_that_was_cut_before_is_refused_with_both_sizes(self):
        path = self.path("data", "part-001.safetensors")
        size = os.path.getsize(path)
        os.truncate(path, size - 10)
        self.check("part-001.safetensors", size - 10, code=errno.EBADMSG, **self.keys())


class Limits(Refusals):
    def test_a_feed_that_does_not_fit_gets_fewer_slots_and_the_log_says_so(self):
        t = self.attached(self.d, self.data, keys=["rows=4096", "edges=[1024]", "pad_to=edge", "prefetch=8"])
        slots = t.hello["slots"]
        self.assertTrue(2 <= slots < 8, slots)
        self.assertLessEqual(slots * t.hello["slot_size"], 64 << 20)
        self.d.wait_log("prefetch lowered from 8 to %d slots of %d bytes" % (slots, t.hello["slot_size"]))
        self.assertIn(str(64 << 20), self.d.log())
        self.assertEqual(t.run(1)[0]["real"], 60)

    def test_a_client_with_fewer_slots_than_asked_for_is_told(self):
        stoker = harness.need("stoker")
        for rows, told in ((4096, True), (4, False)):
            cat = subprocess.run([stoker, "cat", self.data, "--socket", self.d.socket, "--steps", "1",
                                  "rows=%d" % rows, "edges=[1024]", "pad_to=edge", "prefetch=8"],
                                 capture_output=True, text=True, timeout=harness.SLOW)
            self.assertEqual(cat.returncode, 0, cat.stderr)
            self.assertEqual(len(cat.stdout.splitlines()), 1)
            self.assertEqual("prefetch lowered from 8 to " in cat.stderr, told, cat.stderr)

    def test_below_two_slots_it_is_refused_with_the_numbers(self):
        error = self.check("memory", "2 slots", 64 << 20, code=errno.ENOMEM,
                           **self.keys("rows=65536", "edges=[1024]", "pad_to=edge"))
        self.assertIn("raise memory", error)

    def test_memory_that_another_job_holds_is_not_there_twice(self):
        large = ["rows=4096", "edges=[1024]", "pad_to=edge", "prefetch=2"]
        first = self.attached(self.d, self.data, job="first", keys=large)
        t = self.trainer(self.d, self.data, job="second", keys=large)
        self.assertEqual(t.hello["r"], -errno.ENOMEM, t.hello)
        first.end()
        self.d.wait_idle()
        self.attached(self.d, self.data, job="second", keys=large)

    def test_a_memlock_limit_too_small_is_refused_with_its_name_and_numbers(self):
        harness.need_nobody()  # who has no CAP_IPC_LOCK
        if harness.is_sanitized(self.d.pid):
            self.skipTest("a sanitizer's mlock() locks nothing")
        os.chmod(self.folder, 0o777)

        def lower():
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
        d = self.daemon("lock: require\n", name="locked", user=NOBODY, group=NOBODY, extra_groups=[],
                        preexec_fn=lower)
        error = self.refused(d, self.data, keys=["rows=32"], user=NOBODY)
        self.assertIn("RLIMIT_MEMLOCK", error)
        self.assertIn("65536", error)
        d.wait_idle()
        self.assertEqual(d.call("Status")["memory_used"], 0)
        t = self.attached(d, self.data, keys=["rows=32", "lock=try"], user=NOBODY)
        self.assertEqual(len(batches(t.run(2))), 2)
        self.assertEqual(len(d.call("Status")["warnings"]), 1, d.call("Status"))

    def test_a_client_out_of_descriptors_is_told_and_leaves_no_seat(self):
        # 0, 1, 2 and the socket fit; of the five descriptors of an attach not all do.
        for limit in (5, 6, 7, 8):
            t = self.trainer(self.d, self.data, keys=["rows=4"], preexec_fn=lambda n=limit: resource.setrlimit(
                resource.RLIMIT_NOFILE, (n, n)))
            self.assertLess(t.hello["r"], 0, t.hello)
            self.assertIn("descriptor", t.error)
            t.process.wait(SLOW)
            self.settle()

    def test_a_client_out_of_address_space_is_told_and_others_go_on(self):
        if harness.is_sanitized(self.d.pid):
            self.skipTest("a sanitizer needs more address space than any limit here")
        other = self.attached(self.d, self.data, job="other", keys=["rows=4"])
        size = {"keys": ["rows=2048", "edges=[1024]", "pad_to=edge", "prefetch=4"]}
        t = self.trainer(self.d, self.data, preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_AS, (32 << 20, 32 << 20)), **size)
        self.assertLess(t.hello["r"], 0, t.hello)
        self.assertEqual(len(batches(other.run(10))), 10)
        t.process.wait(SLOW)
        wait_until(lambda: len(self.d.jobs()) == 1, what="the end of the failed job")
        self.assertEqual(self.attached(self.d, self.data, **size).run(1)[0]["real"], 60)


class Seats(Refusals):
    def test_a_second_client_for_a_taken_seat_is_refused_with_the_pid_of_the_first(self):
        t = self.attached(self.d, self.data, keys=["rows=4"])
        other = self.trainer(self.d, self.data, keys=["rows=4"])
        self.assertEqual(other.hello["r"], -errno.EBUSY)
        self.assertIn("pid %d" % t.pid, other.error)
        self.assertIn("user %d" % os.geteuid(), other.error)
        self.assertIn("since", other.error)
        self.assertEqual(len(batches(t.run(5))), 5)

    def test_ranks_that_disagree_are_refused_with_both_values(self):
        t = self.attached(self.d, self.data, keys=["rows=4", "seed=17"], rank=0, world=2)
        for options, keys, says in (
                ({"rank": 1, "world": 3}, ["rows=4", "seed=17"], ("world 3", "2")),
                ({"rank": 1, "world": 2}, ["rows=8", "seed=17"], ("rows", "8", "4")),
                ({"rank": 1, "world": 2}, ["rows=4", "seed=18"], ("seed", "18", "17")),
                ({"rank": 1, "world": 2, "replicas": 2}, ["rows=4", "seed=17"], ("replicas 2", "1")),
                ({"rank": 1, "world": 2, "state": t.state()}, ["rows=4", "seed=17"], ("start state",))):
            other = self.trainer(self.d, self.data, keys=keys, **options)
            self.assertEqual(other.hello["r"], -errno.EEXIST, other.hello)
            for word in says:
                self.assertIn(word, other.error)
            self.assertIn("job", other.error)
            other.process.wait(SLOW)
        self.attached(self.d, self.data, keys=["rows=4", "seed=17"], rank=1, world=2)
        self.assertEqual(len(batches(t.run(5))), 5)

    def test_ranks_with_other_data_behind_the_first_path_are_refused(self):
        self.dataset(random_lengths(40, seed=2), "b")
        self.dataset(random_lengths(40, seed=3), "c")
        specs = [{"data": [{"path": self.data}, {"path": self.path(name)}], "rows": 2} for name in "bc"]
        self.raw(self.d).attach(spec=specs[0], world=2)
        with self.assertRaises(harness.Refused) as refused:
            self.raw(self.d).attach(spec=specs[1], world=2, rank=1)
        self.assertEqual(refused.exception.code, -errno.EEXIST)
        for word in ("data", self.path("b"), self.path("c")):
            self.assertIn(word, refused.exception.reason)
        self.raw(self.d).attach(spec=specs[0], world=2, rank=1)

    def test_a_connection_holds_one_seat(self):
        raw = self.raw(self.d)
        spec = {"data": self.data, "rows": 4}
        raw.attach(spec=spec)
        with self.assertRaises(harness.Refused) as e:
            raw.attach(spec=spec, job="second")
        self.assertEqual(e.exception.code, -errno.EBUSY)
        self.assertEqual(len(self.d.jobs()), 1)


if __name__ == "__main__":
    harness.main()
