# SPDX-License-Identifier: Apache-2.0
"""What takes its time: 100 kills, 10^5 batches with flat memory, the line that is logged after 10 s."""
import os

os.environ["STOKER_KILLS"] = "100"
os.environ["STOKER_FLAT_BATCHES"] = "100000"

import logging

import common
import stoker
from test_batches import Lifetime
from test_processes import Kills


class Waits(common.LoaderCase):
    def test_who_is_waited_for_is_logged_after_ten_seconds(self):
        l = self.loader(as_="dlpack", rank=0, world_size=1, replica=0, replicas=2, timeout=11)
        with self.assertLogs("stoker", logging.WARNING) as logged, self.assertRaises(TimeoutError):
            next(iter(l))
        self.assertEqual(len(logged.output), 1)
        self.assertIn("ring: 1 of 2 seats", logged.output[0])


def load_tests(loader, tests, pattern):
    return common.unittest.TestSuite([
        loader.loadTestsFromTestCase(Waits), loader.loadTestsFromTestCase(Kills),
        Lifetime("test_memory_and_references_stay_flat")])


if __name__ == "__main__":
    common.main()
