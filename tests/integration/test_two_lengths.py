# SPDX-License-Identifier: Apache-2.0
"""Two length fields, audio frames and text tokens: each is padded to a width of its own."""
import json
import os
import random
import subprocess

import harness
from harness import Case, need, program

FRAMES, TOKENS = [40, 80, 160], [[4, 8], [8, 16], [12, 24]]
EDGES = [(f, t) for f, ts in zip(FRAMES, TOKENS) for t in ts]
FIELDS = ("fields=[{name: frames}, {name: text, dtype: i64, pad: -100}, "
          "{name: style, pad: 9}, {name: text_mask, make: mask, from: text, dtype: u8}, "
          "{name: text_n, make: lengths, from: text}]")


class TwoLengths(Case):
    def setUp(self):
        super().setUp()
        need("stoker")
        r = random.Random(4)
        self.samples = []
        for i in range(203):
            frames = r.randint(1, 160)
            text = min(24, max(1, frames // 8 + r.randint(-3, 4)))
            self.samples.append((harness.tokens(i, frames), harness.tokens(i + 500, text)))
        self.data = self.path("speech")
        os.makedirs(self.data)
        for s in range(3):
            part = self.samples[s * 70:(s + 1) * 70]
            tensors = harness.ragged("frames", [f for f, _ in part])
            tensors.update(harness.ragged("text", [t for _, t in part]))
            tensors.update(harness.ragged("style", [[v % 100 for v in t] for _, t in part], "U8"))
            harness.write_shard(os.path.join(self.data, "part-%d.safetensors" % s), tensors)
        self.edges = [[f, t] for f, t in zip(FRAMES, TOKENS)]
        self.keys = ["length=[frames, text]", "edges=" + json.dumps(self.edges), "rows=4",
                     "multiple_of=4", "tail=pad", FIELDS]

    def stoker(self, *args):
        p = subprocess.run([program("stoker"), *args], capture_output=True, text=True, timeout=60)
        self.assertEqual(p.returncode, 0, p.stderr)
        return p.stdout

    def batches(self, d, rank, *keys):
        out = self.stoker("cat", self.data, "--socket", d.socket, "--job", "j%d" % rank, "--data", "--epochs",
                          "1", "--rank", str(rank), "--world", "2", *self.keys, *keys)
        lines = [json.loads(line) for line in out.splitlines()]
        return [line for line in lines if line["kind"] == "batch"]

    def check(self, batch, second):
        data = batch["data"]
        self.assertEqual(len(data["frames"]), batch["rows"])
        for i, sample in enumerate(batch["sample_ids"]):
            frames, text = ([], []) if sample is None else self.samples[sample]
            rest = [0] * (batch["width"] - len(frames))
            n = second - len(text)
            self.assertEqual(data["frames"][i], frames + rest)
            self.assertEqual(data["text"][i], text + [-100] * n)
            self.assertEqual(data["style"][i], [v % 100 for v in text] + [9] * n)
            self.assertEqual(data["text_mask"][i], [1] * len(text) + [0] * n)
            self.assertEqual(data["text_n"][i], len(text))

    def test_each_field_is_as_wide_as_its_edge_and_every_sample_comes_once(self):
        d = self.daemon()
        seen, classes = [], set()
        for rank in (0, 1):
            for batch in self.batches(d, rank, "pad_to=edge"):
                edge, second = EDGES[batch["class"]]
                self.assertEqual(batch["width"], edge)
                self.check(batch, second)
                seen += [i for i in batch["sample_ids"] if i is not None]
                classes.add(batch["class"])
        self.assertEqual(sorted(seen), list(range(203)))
        self.assertGreater(len({EDGES[c][1] for c in classes}), 3, "several second widths")

    def test_both_ranks_are_as_wide_as_the_longest_texts_of_their_step(self):
        d = self.daemon()
        steps = zip(self.batches(d, 0, "pad_to=longest"), self.batches(d, 1, "pad_to=longest"))
        narrower = 0
        for a, b in steps:
            edge, second = EDGES[a["class"]]
            texts = [len(self.samples[i][1]) for i in a["sample_ids"] + b["sample_ids"] if i is not None]
            width = min(second, -(-max(texts) // 4) * 4)
            narrower += width < second
            self.check(a, width)
            self.check(b, width)
        self.assertGreater(narrower, 0, "else the edge would do as well")

    def test_the_classes_told_at_attach_and_by_plan_have_both_edges(self):
        d = self.daemon()
        raw = self.raw(d)
        spec = {"data": self.data, "length": ["frames", "text"], "edges": self.edges, "rows": 4, "multiple_of": 4}
        raw.attach(spec=spec)
        control = harness.SeatFile(raw).control
        start = control.find(b'{"stream"')
        told = json.loads(control[start:control.find(b"\0", start)])["classes"]
        self.assertEqual([(c["edge"], c["edge2"], c["width2_max"]) for c in told],
                         [(f, t, t) for f, t in EDGES])
        names = ("edge", "rows", "width_min", "width_max", "width_multiple", "edge2", "width2_min", "width2_max")
        t = self.attached(d, self.data, job="shapes", keys=self.keys[:4])
        self.assertEqual([dict(zip(names, s)) for s in t.do("shapes")["shapes"]], told)
        plan = json.loads(self.stoker("plan", self.data, "--json", *self.keys[:4]))
        self.assertEqual(plan["classes"], told)
        text = self.stoker("plan", self.data, "pad_to=edge", *self.keys[:4])
        self.assertIn("class 1: 4 rows, width 40..40, second width 8..8", text)

    def test_pairs_of_edges_are_chosen_and_frozen(self):
        d = self.daemon()
        keys = [k for k in self.keys if not k.startswith("edges=")] + ["buckets=6"]
        plan = json.loads(self.stoker("plan", self.data, "--json", *keys, "pad_to=edge", "--edges-out", self.path("e.json")))
        classes = [(c["edge"], c["edge2"]) for c in plan["classes"]]
        self.assertTrue(2 < len(classes) <= 6, classes)
        self.assertGreater(len({f for f, _ in classes}), 1)
        self.assertGreater(len({t for _, t in classes}), 1)
        lines = self.stoker("cat", self.data, "--socket", d.socket, "--data", "--epochs", "1", *keys, "pad_to=edge").splitlines()
        batches = [b for b in map(json.loads, lines) if b["kind"] == "batch"]
        for batch in batches:
            self.assertEqual(batch["width"], classes[batch["class"]][0])
            self.check(batch, classes[batch["class"]][1])
        self.assertEqual(sorted(i for b in batches for i in b["sample_ids"] if i is not None), list(range(203)))
        padded = {m: json.loads(self.stoker("plan", self.data, "--json", *keys, "bucket_method=" + m, "pad_to=edge"))
                  for m in ("optimal", "uniform")}
        cost = {m: sum(next(f + t for f, t in ((c["edge"], c["edge2"]) for c in p["classes"])
                            if f >= len(frames) and t >= len(text)) for frames, text in self.samples)
                for m, p in padded.items()}
        self.assertLess(cost["optimal"], cost["uniform"])
        policies = padded["optimal"]["policies"]
        self.assertEqual([p["name"] for p in policies], ["one size", "uniform", "quantile", "kmeans", "optimal"])
        self.assertEqual([tuple(e) for e in policies[-1]["edges"]], classes)
        epoch = padded["optimal"]["epoch"]
        self.assertEqual(epoch["real_tokens"], sum(len(f) + len(t) for f, t in self.samples))
        self.assertEqual(epoch["padding"], epoch["padding_at_edges"])
        self.assertGreaterEqual(epoch["padded_tokens"], cost["optimal"])
        self.assertEqual(policies[-1]["padded_tokens"], cost["optimal"])
        self.assertEqual(policies[1]["padded_tokens"], cost["uniform"])
        self.assertEqual({p["real_tokens"] for p in policies}, {sum(len(f) + len(t) for f, t in self.samples)})
        self.assertEqual(min(p["padding"] for p in policies), policies[-1]["padding"])
        kept = json.loads(self.stoker("plan", self.data, "--json", *self.keys, "keep={max_length: 60}"))["policies"]
        self.assertEqual(kept[-1]["name"], "as given")
        with open(self.path("e.json")) as file:
            self.assertEqual([(f, t) for f, ts in json.load(file)["edges"] for t in ts], classes)
        frozen = [*keys[:-1], "pad_to=edge", "edges=" + self.path("e.json")]
        self.assertEqual(self.stoker("plan", self.data, "--hash", *frozen),
                         self.stoker("plan", self.data, "--hash", *keys, "pad_to=edge"))

    def test_one_length_tells_of_no_second_one(self):
        plan = json.loads(self.stoker("plan", self.data, "--json", "length=frames", "rows=4", "buckets=2"))
        self.assertEqual({"edge2", "width2_min", "width2_max"} & set(plan["classes"][0]), set())


if __name__ == "__main__":
    harness.main()
