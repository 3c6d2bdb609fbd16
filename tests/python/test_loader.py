# SPDX-License-Identifier: Apache-2.0
"""Loader: epochs, state, errors, waiting, figures."""
import gc
import json
import os
import random
import struct
import subprocess
import threading
import time
import warnings

import common
import harness
import slowfs
import stoker
from common import LoaderCase, ids, needs_torch
from stoker._loader import _identity


class Epochs(LoaderCase):
    def test_each_epoch_holds_every_sample_once_in_another_order(self):
        l = self.loader(as_="dlpack")
        first, second = [[i for b in l for i in ids(b)] for _ in range(2)]
        self.assertEqual(sorted(first), list(range(200)))
        self.assertEqual(sorted(second), list(range(200)))
        self.assertNotEqual(first, second)

    def test_its_length_is_the_number_of_batches_of_an_epoch(self):
        l = self.loader(as_="dlpack")
        self.assertEqual(len(l), sum(1 for _ in l))
        self.assertEqual(l.total_steps(3), 3 * len(l))

    def test_micro_batches_count_in_the_length_and_not_in_the_steps(self):
        l = self.loader(as_="dlpack", accumulate=2)
        batches = [(b.step, b.micro, b.last_micro) for b in l]
        self.assertEqual(len(l), len(batches))
        self.assertEqual(l.total_steps(1), batches[-1][0] + 1)
        self.assertEqual(batches[:2], [(0, 0, False), (0, 1, True)])

    def test_after_a_break_iter_goes_on_with_the_next_step(self):
        l = self.loader(as_="dlpack")
        seen = []
        for _ in range(1000):
            for b in l:
                seen += ids(b)
                if len(seen) % 12 == 0:
                    break
            else:
                break
        self.assertEqual(sorted(seen), list(range(200)))
        self.assertEqual(l.epoch, 1)

    def test_a_break_at_the_last_batch_does_not_make_the_next_epoch_empty(self):
        l = self.loader(as_="dlpack")
        for epoch in range(3):
            for n, b in enumerate(l, 1):
                if b.ends_epoch:
                    break
            self.assertEqual((b.epoch, n), (epoch, len(l)))

    def test_two_iterators_at_once_share_what_comes(self):
        l = self.loader(as_="dlpack")
        a, b = iter(l), iter(l)
        seen = []
        for it in (a, b) * 1000:
            batch = next(it, None)
            if batch is None:
                break
            seen += ids(batch)
        self.assertEqual(sorted(seen), list(range(200)))
        self.assertEqual([next(a, None), next(b, None)], [None, None], "both are over, and take nothing of the next epoch")
        self.assertEqual((l.epoch, l.step), (1, 0))

    def test_leaving_the_loop_a_thousand_times_leaves_nothing(self):
        l = self.loader(as_="dlpack")

        def leave(n):
            for _ in range(n):
                for _, b in zip(range(3), l):
                    pass
        leave(50)
        gc.collect()
        before = [harness.footprint(p) for p in (os.getpid(), self.d.pid)]
        leave(1000)
        gc.collect()
        after = [harness.footprint(p) for p in (os.getpid(), self.d.pid)]
        for x, y in zip(before, after):
            self.assertEqual((y["fds"], y["threads"]), (x["fds"], x["threads"]))
            self.assertLess(y["rss_kb"] - x["rss_kb"], 512 if not harness.is_sanitized(os.getpid()) else 1 << 30)
        self.assertEqual(l.stats()["slots_held"], 0)

    def test_the_last_batch_of_an_epoch_has_the_rows_that_are_left(self):
        self.data, self.samples = self.dataset([5] * 10, name="ten")
        for _ in range(2):
            l = self.loader(as_="dlpack", group="fixed", buckets=None, job="j%d" % _)
            got = [(b.rows, b["input_ids"].shape[0], len(ids(b))) for b in l]
            self.assertEqual(got, [(4, 4, 4), (4, 4, 4), (2, 2, 2)])

    def test_epoch_and_step_say_what_comes_next(self):
        l = self.loader(as_="dlpack")
        self.assertEqual((l.epoch, l.step), (0, 0))
        it = iter(l)
        b = next(it)
        self.assertEqual((l.epoch, l.step), (0, 1))
        for b in it:
            pass
        self.assertEqual((b.epoch, b.step), (0, len(l) - 1))
        self.assertEqual((l.epoch, l.step), (1, 0))

    def test_the_stream_ends_after_the_epochs_asked_for(self):
        l = self.loader(as_="dlpack", epochs=2)
        counts = [sum(1 for _ in l) for _ in range(4)]
        self.assertEqual(counts, [len(l), len(l), 0, 0])

    def test_an_eval_loader_gives_everything_once_in_order_at_each_iter(self):
        l = stoker.eval_loader(self.data, daemon="system", socket=self.d.socket, rows=8, as_="dlpack", group="fixed",
                               prefetch=4)
        self.addCleanup(l.close)
        for _ in range(2):
            self.assertEqual([i for b in l for i in ids(b)], list(range(200)))
        next(iter(l))
        self.assertEqual([i for b in l for i in ids(b)], list(range(200)), "after a break too")


    def test_evaluation_is_served_by_the_private_daemon_of_the_training(self):
        os.mkdir(self.path("alone"), 0o700)
        code = """
train = loader(private=True, job=sys.argv[1] or None); it = iter(train); next(it)
test = stoker.eval_loader(os.environ["STOKER_DATA"], rows=8, as_="dlpack", job=sys.argv[1] or None)
print(train.info["daemon_pid"] == test.info["daemon_pid"], test.info["job"], sum(b.rows for b in test))
sockets = [f for f in os.listdir(os.environ["XDG_RUNTIME_DIR"] + "/stoker") if f.endswith(".sock")]
print(sum(b.rows for b in it), len(sockets))"""
        self.private()
        self.assertEqual(self.script(code, "run").end(), (0, "True run-eval 200\n196 1\n", ""))
        alone = self.script(code, "", env={"XDG_RUNTIME_DIR": self.path("alone")})
        self.assertEqual(alone.end(), (0, "True pid-%d-eval 200\n196 1\n" % alone.pid, ""))


class State(LoaderCase):
    def rest(self, l):
        """Ids to the end of the next epoch but one."""
        out = []
        for _ in range(2):
            out += [ids(b) for b in l]
        return out

    def take(self, l, n):
        it = iter(l)
        return [next(it) for _ in range(n)]  # no more than there are slots

    def test_a_state_continues_exactly_in_another_loader(self):
        l = self.loader(as_="dlpack")
        for _, b in zip(range(7), l):
            del b
        state = json.loads(json.dumps(l.state_dict()))
        want = self.rest(l)
        l.close()
        again = self.loader(as_="dlpack", job="again")
        again.load_state_dict(state)
        self.assertEqual((again.epoch, again.step), (0, 7))
        self.assertEqual(self.rest(again), want)
        third = self.loader(as_="dlpack", job="third", state=state)
        self.assertEqual(self.rest(third), want)

    def test_wherever_it_goes_back_to_the_next_batch_is_the_right_one(self):
        # Batches are made before they are asked for: that must never show.
        reference = self.loader(as_="numpy", job="reference", copy=True, prefetch=16)
        want = [[ids(b) for b in reference] for _ in range(4)]
        steps = len(want[0])
        flat = sum(want, [])
        r = random.Random(7)
        for as_ in "dlpack", "numpy":
            l = self.loader(as_=as_, job=as_, prefetch=16)
            at, saved, it = 0, [(0, l.state_dict())], iter(l)
            for _ in range(400):
                time.sleep(0.001 if r.random() < 0.2 else 0)  # now and then all is ready
                what = r.random()
                if what < 0.75 and at < 4 * steps - 1:
                    b = next(it, None)
                    if b is None:
                        it = iter(l)
                        continue
                    self.assertEqual(ids(b), flat[at])
                    at += 1
                    self.assertEqual(l.stats()["slots_held"], 1)
                elif what < 0.85:
                    saved.append((at, l.state_dict()))
                    self.assertEqual((saved[-1][1]["epoch"], saved[-1][1]["step"]), divmod(at, steps))
                elif what < 0.95:
                    it = iter(l)
                else:
                    b = None
                    at, state = r.choice(saved)
                    l.load_state_dict(state)
                    it = iter(l)
            b = None
            again = self.loader(as_=as_, job="again", state=l.state_dict())
            self.assertEqual(ids(next(iter(again))), flat[at])
            again.close()
            l.close()

    def test_what_was_made_ahead_is_given_back_at_the_end(self):
        l = self.loader(as_="dlpack", prefetch=16)
        b = next(iter(l))
        harness.wait_until(lambda: self.d.queues()[0]["ready"] > 0, what="batches")
        for _, b in zip(range(4), l):
            pass
        del b
        l.load_state_dict(l.state_dict())
        harness.wait_until(lambda: self.d.queues()[0]["leased"] == 0, what="no slot with the client")
        for _, b in zip(range(4), l):
            pass
        l.close()
        self.assertGreater(b.rows, 0)
        self.d.wait_idle()

    def test_loading_in_the_middle_goes_back_exactly(self):
        l = self.loader(as_="dlpack")
        start = l.state_dict()
        all_ = [ids(b) for b in self.take(l, 3)]
        l.load_state_dict(start)
        self.assertEqual([ids(b) for b in self.take(l, 3)], all_)

    def test_the_state_at_an_epochs_end_begins_the_next_epoch(self):
        l = self.loader(as_="dlpack")
        it = iter(l)
        for _ in range(len(l)):
            next(it)
        before = l.state_dict()
        self.assertIsNone(next(it, None))
        after = l.state_dict()
        self.assertEqual(before, after)
        self.assertEqual((after["epoch"], after["step"]), (1, 0))
        want = [ids(b) for b in l]
        for job, state in ("b", before), ("a", after):
            again = self.loader(as_="dlpack", job=job, state=state)
            self.assertEqual([ids(b) for b in again], want)
            self.assertEqual(again.epoch, 2)

    def test_a_state_after_a_batch_needs_no_order_of_fetching(self):
        l = self.loader(as_="dlpack")
        b1, b2, b3 = self.take(l, 3)
        state = l.state_dict(after=b2)
        self.assertEqual(state["step"], 2)
        again = self.loader(as_="dlpack", job="again", state=state)
        self.assertEqual(ids(self.take(again, 1)[0]), ids(b3))

    def test_a_consumer_that_fetches_ahead_says_so_and_gets_the_state_behind(self):
        l = self.loader(as_="dlpack", lookahead=1)
        it, states = iter(l), [l.state_dict()]
        batches = []
        for b in it:
            batches.append(ids(b))
            states.append(l.state_dict())
        # After fetching n batches n - 1 are trained.
        again = self.loader(as_="dlpack", job="again", state=states[5])
        self.assertEqual((again.epoch, again.step), (0, 4))
        self.assertEqual(ids(self.take(again, 1)[0]), batches[4])
        self.assertEqual(l.state_dict()["epoch"], 1, "at the end all are trained")
        end = self.loader(as_="dlpack", job="end", state=l.state_dict())
        self.assertEqual([ids(b) for b in end], [ids(b) for b in l])

    def test_a_state_of_another_spec_is_refused_with_the_key_that_differs(self):
        l = self.loader(as_="dlpack")
        states = [l.state_dict()]
        for b in l:
            del b
        states.append(l.state_dict())
        self.assertEqual([(s["epoch"], s["step"]) for s in states], [(0, 0), (1, 0)])
        for state in states:
            with self.assertRaises(stoker.SpecError) as e:
                self.loader(as_="dlpack", job="other", state=state, multiple_of=16)
            self.assertIn("the first key that differs is multiple_of, now 16", str(e.exception))
            with self.assertRaises(stoker.SpecError) as e:
                self.loader(as_="dlpack", job="other", state=state, tail="pad")
            self.assertIn('tail, now "pad", in the state "short"', str(e.exception))

    def test_a_state_of_an_older_release_before_the_first_batch_is_the_beginning(self):
        l = self.loader(as_="dlpack")
        start = l.state_dict()
        old = {**start, "state": harness.without_cursor(start["state"])}
        self.assertEqual(len(old["state"]), 2 * 72)
        first = [ids(b) for b in self.take(l, 3)]
        again = self.loader(as_="dlpack", job="old", state=old)
        self.assertEqual(again.state_dict(), start)
        again.load_state_dict(old)
        self.assertEqual([ids(b) for b in self.take(again, 3)], first)

    def test_ranks_agree_about_the_beginning_whoever_told_it(self):
        state = bytes.fromhex(self.loader(as_="dlpack").state_dict()["state"])
        old = bytes.fromhex(harness.without_cursor(state.hex()))
        found = [_identity(s, (0, 0)) for s in (state, old)]
        self.assertEqual(found[0], found[1])
        self.assertEqual(found[0]["start"], "the beginning")
        self.assertNotEqual(_identity(state, (1, 0))["start"], "the beginning")

    def test_with_a_global_batch_another_world_gets_the_same_steps(self):
        def steps(world, n, state=None):
            l = [self.loader(as_="dlpack", job="w%d-%d" % (world, bool(state)), rank=r, world_size=world, rows=None,
                             global_rows=8, world_multiple=4, state=state) for r in range(world)]
            got = [sum((ids(b) for b in batches), []) for _, batches in zip(range(n), zip(*l))]
            states = [x.state_dict() for x in l]
            return got, states[0]
        first, state = steps(2, 5)
        want, _ = steps(2, 6, state)
        for world in 1, 4:
            self.assertEqual(steps(world, 6, state)[0], want, "world %d" % world)

    def test_what_is_no_state_is_refused(self):
        l = self.loader(as_="dlpack")
        for bad in {}, {"version": 2}, {"version": 1, "epoch": 0, "step": 0, "state": "xyz"}, 17:
            with self.assertRaises(stoker.SpecError):
                l.load_state_dict(bad)
        with self.assertRaises(TypeError):
            l.state_dict(after={"input_ids": 1})

    def test_a_killed_daemon_comes_back_and_nothing_is_lost_or_repeated(self):
        l = self.loader(as_="dlpack", epochs=1, reconnect=20)
        it = iter(l)
        seen = [i for _ in range(9) for i in ids(next(it))]
        kept = next(it)
        seen += ids(kept)
        self.d.kill()
        self.d.start()
        seen += [i for b in it for i in ids(b)]
        self.assertEqual(sorted(seen), list(range(200)))
        self.assertEqual(ids(kept), seen[36:40], "a batch of before is still readable")

    def test_without_reconnect_a_lost_daemon_is_disconnected(self):
        l = self.loader(as_="dlpack", reconnect=0)
        it = iter(l)
        next(it)
        self.d.kill()
        with self.assertRaises(stoker.Disconnected) as e:
            for _ in range(100):
                next(it)
        self.assertIn(self.d.socket, str(e.exception))
        self.assertIsInstance(e.exception, ConnectionError)

    def test_who_waits_when_the_daemon_is_killed_is_told_at_once_and_keeps_what_he_has(self):
        l = self.loader(as_="dlpack", reconnect=0)
        it, kept = iter(l), []
        for _ in range(4):
            kept.append(next(it))
        want = [memoryview(b["input_ids"]).tolist() for b in kept]
        threading.Timer(0.3, self.d.kill).start()
        start = time.monotonic()
        with self.assertRaises(stoker.Disconnected):
            next(it)
        self.assertLess(time.monotonic() - start, 5, "of the timeout of 300")
        self.assertEqual([memoryview(b["input_ids"]).tolist() for b in kept], want)
        kept.clear()
        l.close()


class Errors(LoaderCase):
    def test_names_of_other_loaders_are_answered_with_the_right_one(self):
        for name, hint in ("batch_size", "rows"), ("shuffle", "order"), ("drop_last", "tail"), ("bukets", "buckets"):
            with self.assertRaises(stoker.SpecError) as e:
                self.loader(**{name: 1})
            self.assertIn(hint, str(e.exception))
            self.assertIn(name, str(e.exception))

    def test_a_damaged_shard_says_what_the_command_line_says(self):
        path = os.path.join(self.data, "part-000.safetensors")
        with open(path, "r+b") as f:
            f.write(struct.pack("<Q", 1 << 40))
        stderr = subprocess.run([harness.need("stoker"), "inspect", path], capture_output=True, text=True).stderr
        with self.assertRaises(stoker.DataError) as e:
            self.loader()
        self.assertIn(path, str(e.exception))
        sentence = stderr.strip().split(": ", 1)[1]
        self.assertIn(sentence, str(e.exception))

    def damages(self):
        """(what is wrong, bytes of a shard)"""
        with open(os.path.join(self.data, "part-000.safetensors"), "rb") as f:
            good = f.read()
        size = struct.unpack("<Q", good[:8])[0]
        header = json.loads(good[8:8 + size])

        def with_header(change):
            new = json.loads(json.dumps(header))
            change(new)
            text = json.dumps(new).encode()
            return struct.pack("<Q", len(text)) + text + good[8 + size:]
        name = next(k for k in header if k.endswith(".offsets"))
        begin, end = (8 + size + i for i in header[name]["data_offsets"])
        offsets = list(struct.unpack("<%dq" % ((end - begin) // 8), good[begin:end]))
        offsets[3], offsets[4] = offsets[4], offsets[3] - 1
        yield "empty", b""
        yield "cut in its header", good[:size]
        yield "cut in its data", good[:-100]
        yield "no JSON", good[:8] + b"x" * size + good[8 + size:]
        yield "of unknown type", with_header(lambda h: h[name].update(dtype="F128"))
        yield "with data behind its end", with_header(lambda h: h[name].update(data_offsets=[0, 1 << 50]))
        yield "with a wrong shape", with_header(lambda h: h[name].update(shape=[7]))
        yield "without offsets", with_header(lambda h: h.pop(name))
        yield "with offsets out of order", good[:begin] + struct.pack("<%dq" % len(offsets), *offsets) + good[end:]

    def test_whatever_is_wrong_with_a_shard_its_sentence_and_class_arrive_and_one_line_is_logged(self):
        for what, content in list(self.damages()):
            path = self.path("damaged", "shard.safetensors")
            os.makedirs(self.path("damaged"), exist_ok=True)
            with open(path, "wb") as f:
                f.write(content)
            done = subprocess.run([harness.need("stoker"), "verify", path], capture_output=True, text=True)
            sentence = next((line for line in (done.stdout + done.stderr).splitlines() if path in line), done).split(": ", 1)[1]
            before = self.d.log().count(sentence)
            with self.assertRaises(stoker.DataError, msg=what) as e:
                self.loader(data=path)
            self.assertIn(sentence, str(e.exception), what)
            self.assertEqual(self.d.log().count(sentence), before + 1, what)
            s = self.script("loader(sys.argv[1])", path)
            status, _, err = s.end()
            self.assertEqual((status, err.count("Traceback")), (1, 1), what)
            self.assertIn("DataError: ", err.splitlines()[-1], what)

    def test_a_shard_that_is_cut_while_it_is_read_is_named_after_all_good_batches(self):
        self.data, self.samples = self.dataset([2000] * 400, name="cut")
        l = self.loader(as_="dlpack", rows=1, buckets=1)
        it = iter(l)
        next(it)
        path = os.path.join(self.data, "part-000.safetensors")
        os.truncate(path, os.path.getsize(path) // 8)
        with self.assertRaises(stoker.DataError) as e:
            for b in it:
                for i, row in zip(ids(b), memoryview(b["input_ids"]).tolist()):
                    self.assertEqual(row, self.samples[i])
        self.assertIn(path, str(e.exception))
        with self.assertRaises(stoker.DataError) as again:
            next(iter(l))
        self.assertEqual(str(again.exception), str(e.exception))

    def test_no_shards_are_not_found(self):
        with self.assertRaises(FileNotFoundError) as e:
            self.loader(data=self.path("nothing-here"))
        self.assertIn("nothing-here", str(e.exception))

    def test_no_daemon_is_disconnected(self):
        with self.assertRaises(stoker.Disconnected) as e:
            stoker.Loader("some-stream", socket=self.path("no.sock"))
        self.assertIn("no.sock", str(e.exception))

    def test_a_second_consumer_of_a_seat_is_refused_by_name(self):
        l = self.loader()
        with self.assertRaises(stoker.JobError) as e:
            self.loader()
        self.assertIn("pid %d" % os.getpid(), str(e.exception))
        next(iter(l))

    def test_a_seat_that_was_given_up_is_free_at_once(self):
        for _ in range(20):
            next(iter(self.loader()))
            self._cleanups.pop()[0]()  # close now

    def test_a_closed_loader_says_so(self):
        with self.loader() as l:
            it = iter(l)
        for call in l.__iter__, l.state_dict, lambda: next(it):
            with self.assertRaises(stoker.Error) as e:
                call()
            self.assertIn("closed", str(e.exception))
        l.close()

    def test_options_out_of_range_are_refused(self):
        for options in {"daemon": "mine"}, {"as_": "tensorflow"}, {"timeout": 0}, {"rank": 1}, \
                {"rank": 2, "world_size": 2}, {"rank": 0, "world_size": 1, "replica": 3, "replicas": 2}, \
                {"rows": object()}:
            with self.assertRaises(stoker.SpecError, msg=options):
                stoker.Loader(self.data, **options)


class Waiting(LoaderCase):
    def test_who_holds_every_slot_is_warned_and_then_refused(self):
        l = self.loader(as_="dlpack", timeout=1.5)
        it, kept = iter(l), []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with self.assertRaises(TimeoutError) as e:
                for b in it:
                    kept.append(b)
        self.assertEqual([w.category for w in caught], [stoker.SlotsHeldWarning])
        self.assertIn("%d of %d slots" % (len(kept), len(kept)), str(caught[0].message))
        self.assertIn("trainer: all %d slots" % len(kept), str(e.exception))
        self.assertIn(str(os.getpid()), str(e.exception))
        kept.clear()
        del b
        next(it)  # and it goes on

    def test_a_cycle_that_holds_the_slots_is_collected_instead(self):
        l = self.loader(as_="dlpack", timeout=5)
        it = iter(l)
        for _ in range(8):
            cycle = [next(it)]
            cycle.append(cycle)
            del cycle

    def test_seats_that_are_missing_are_named(self):
        l = self.loader(as_="dlpack", rank=0, world_size=1, replica=0, replicas=2, timeout=0.3)
        with self.assertRaises(stoker.Timeout) as e:
            next(iter(l))
        self.assertIn("ring: 1 of 2 seats", str(e.exception))

    def test_other_threads_run_while_one_waits(self):
        l = self.loader(as_="dlpack", rank=0, world_size=1, replica=0, replicas=2, timeout=1)
        turns = []

        def count():
            while not turns or turns[-1] is not None:
                turns.append(time.monotonic())
                time.sleep(0.01)
        t = threading.Thread(target=count)
        t.start()
        with self.assertRaises(stoker.Timeout):
            next(iter(l))
        turns.append(None)
        t.join()
        self.assertGreater(len(turns), 20)

    def test_masked_samples_are_counted_and_listed(self):
        strict = {"name": "input_ids", "dtype": "u16", "range": "error", "clamp": [0, 1e9]}
        l = self.loader(as_="dlpack", fields=[dict(strict, bias=65536 - 25000)], on_bad_sample="quarantine")
        bad = [i for i, tokens in enumerate(self.samples) if max(tokens) >= 25000]
        self.assertGreater(len(bad), 3)
        self.assertLess(len(bad), len(self.samples))
        found = [sum(b.rows_bad for b in l) for _ in range(2)]
        self.assertEqual(found, [len(bad), len(bad)])
        self.assertEqual(l.stats()["rows_bad"], 2 * len(bad))
        listed = l.quarantined()
        self.assertEqual([b["sample"] for b in listed], bad)
        self.assertEqual({b["field"] for b in listed}, {"input_ids"})
        self.assertIn("does not fit U16", listed[0]["reason"])
        self.assertTrue(os.path.exists(listed[0]["shard"]))

    def test_what_was_asked_for_and_is_not_so_is_a_warning(self):
        self.d.kill()
        self.d = self.daemon("memory: 200KiB\n")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            l = self.loader(as_="dlpack", prefetch=64)
        self.assertEqual([w.category for w in caught], [stoker.NoticeWarning])
        self.assertIn("prefetch lowered from 64 to %d" % l.info["slots"], str(caught[0].message))
        self.assertEqual(caught[0].filename, common.__file__, "it names the caller")
        self.assertEqual(sum(b.rows for b in l), 200)

    def test_memory_that_a_private_daemon_cannot_lock_is_a_warning(self):
        if harness.is_sanitized(os.getpid()):
            self.skipTest("mlock() does nothing under a sanitizer")
        self.private()
        s = self.script("""
import ctypes, resource
resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 4096))
ctypes.CDLL(None).prctl(24, 14)  # what is started from here on cannot have CAP_IPC_LOCK
l = loader(private=True)
print(sum(b.rows for b in l))""")
        status, out, err = s.end()
        self.assertEqual((status, out), (0, "200\n"), err)
        self.assertEqual(err.count("NoticeWarning: stoker: "), 1, err)
        self.assertIn("RLIMIT_MEMLOCK", err)

    def test_stats_are_a_flat_dict_of_floats(self):
        l = self.loader(as_="dlpack")
        sum(1 for _ in l)
        stats = l.stats()
        self.assertEqual({type(v) for v in stats.values()}, {float})
        self.assertEqual(stats["samples"], 200)
        self.assertEqual(stats["real_tokens"], sum(map(len, self.samples)))


class Storage(LoaderCase):
    """A shard on storage that stops answering."""

    def slow_shard(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("numpy is not installed")
        stoker.write(self.path("set"), ({"input_ids": numpy.full(2048, i)} for i in range(600)))
        os.mkdir(self.path("slow"))
        try:
            slow = slowfs.SlowFile(self.path("slow"), self.path("set", "shard-00000.safetensors"), "shard.safetensors")
        except OSError as e:
            self.skipTest("FUSE cannot be mounted here: %s" % e)
        self.addCleanup(slow.end)
        return slow

    def test_who_waits_for_storage_is_told_so_and_goes_on_when_it_answers(self):
        slow = self.slow_shard()
        l = self.loader(as_="dlpack", data=self.path("slow", "shard.safetensors"), timeout=1.5, reconnect=0, epochs=1)
        self.addCleanup(slow.open_gate)
        it = iter(l)
        seen = ids(next(it))
        slow.closed = True
        with self.assertRaises(TimeoutError) as e:
            while True:
                seen += ids(next(it))
        said = str(e.exception)
        self.assertRegex(said, r"waiting for storage: \d of 4 slots are being filled")
        self.assertRegex(said, r"\d of \d workers on it wait for a shard to be read, for \d+ ms so far")
        slow.open_gate()
        l._timeout = 60
        seen += [i for b in it for i in ids(b)]
        self.assertEqual(sorted(seen), list(range(600)))
        l.close()
        self.d.wait_idle()
        slow.end()


class Shapes(LoaderCase):
    def test_no_batch_has_another_shape_than_those_announced(self):
        l = self.loader(as_="dlpack")
        shapes = l.shapes()
        for b in l:
            s = shapes[b.shape_class]
            self.assertEqual(b["input_ids"].shape, (b.rows, b.width))
            self.assertLessEqual(b.rows, s.rows)
            self.assertTrue(s.width_min <= b.width <= s.width_max)
            self.assertEqual(b.width % s.width_multiple, 0)

    def test_shapes_have_both_widths_where_there_are_two_lengths(self):
        self.assertEqual({(s.edge2, s.width2_min, s.width2_max) for s in self.loader(as_="dlpack").shapes()}, {(0, 0, 0)})
        data = self.path("speech")
        os.makedirs(data)
        tensors = harness.ragged("frames", [harness.tokens(i, 1 + i % 30) for i in range(60)])
        tensors.update(harness.ragged("text", [harness.tokens(i, 1 + i % 5) for i in range(60)]))
        harness.write_shard(os.path.join(data, "a.safetensors"), tensors)
        l = self.loader(as_="dlpack", job="two", data=data, length=["frames", "text"], buckets=None,
                        edges=[[16, [3, 6]], [32, [8]]], multiple_of=2)
        self.assertEqual([(s.edge, s.edge2, s.width2_max) for s in l.shapes()], [(16, 3, 3), (16, 6, 6), (32, 8, 8)])
        for b in l:
            s = l.shapes()[b.shape_class]
            self.assertTrue(s.width2_min <= b["text"].shape[1] <= s.width2_max)

    @needs_torch
    def test_examples_are_one_of_each_shape_largest_first_and_consume_nothing(self):
        l = self.loader(as_="torch")
        examples = list(l.examples())
        sizes = [e["input_ids"].numel() for e in examples]
        self.assertEqual(len(examples), len(l.shapes()))
        self.assertEqual(sizes, sorted(sizes, reverse=True))
        first = next(iter(l))
        self.assertEqual((first.epoch, first.step), (0, 0))
        for name, tensor in first.items():
            self.assertEqual(examples[0][name].dtype, tensor.dtype)
        self.assertEqual(examples[0]["attention_mask"].min(), 1)

    def test_an_example_goes_through_what_a_training_step_does(self):
        l = self.loader(as_="numpy", rank=0, world_size=2, accumulate=2)
        for number, e in zip(sorted(range(len(l.shapes())), key=lambda i: -l.shapes()[i].rows * l.shapes()[i].width_max),
                             l.examples()):
            shape = l.shapes()[number]
            self.assertEqual((e.shape_class, e.rows, e.width, e.max_seqlen), (number, shape.rows, e["input_ids"].shape[1],
                                                                            shape.width_max))
            self.assertEqual(e.global_tokens, 4 * e.real_tokens)
            self.assertEqual((e.step, e.last_micro, e.lengths.sum()), (0, True, e.real_tokens))
            self.assertEqual(e.sample_ids.tolist(), [-1] * shape.rows)
            self.assertIsNone(e.row_first)
            with self.assertRaises(AttributeError):
                l.state_dict(after=e)
        self.assertEqual((l.epoch, l.step), (0, 0))

    def test_examples_of_packed_rows_have_borders_that_kernels_take(self):
        for i, keys in enumerate(({"flat": True, "tokens": 512, "rows": None}, {"max_length": 128, "rows": 2})):
            l = self.loader(as_="numpy", job="packed-%d" % i, group="pack", buckets=None, **keys)
            e, = l.examples()
            rows, width = e["input_ids"].shape
            self.assertEqual(e["cu_seqlens"].tolist(), [i * width for i in range(rows + 1)])
            self.assertEqual(e["position_ids"].tolist(), [list(range(width))] * rows)
            self.assertEqual(e["segment_ids"].tolist(), [[1] * width] * rows)
            self.assertEqual(e["max_seqlen"].tolist(), [e.max_seqlen])
            self.assertEqual((e.row_first.tolist(), e.segment_from.tolist()), (list(range(rows + 1)), [0] * rows))
            b = next(iter(l))
            self.assertEqual({k: (v.dtype, v.ndim) for k, v in e.items()}, {k: (v.dtype, v.ndim) for k, v in b.items()})

    def test_examples_of_numpy_are_arrays(self):
        import numpy
        l = self.loader(as_="numpy")
        for e in l.examples():
            self.assertIsInstance(e["input_ids"], numpy.ndarray)
            self.assertTrue(e["attention_mask"].all())


if __name__ == "__main__":
    common.main()
