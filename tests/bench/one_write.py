#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts with valgrind's lackey how often each byte of a batch is stored: once, and none is read back.

There are no hardware counters in a virtual machine; a trace of every access is slow and exact.
"""
import os
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77


def main():
    program = sys.argv[1]
    if not shutil.which('valgrind'):
        print('valgrind is not installed')
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, 'trace')
        done = subprocess.run(['valgrind', '--tool=lackey', '--trace-mem=yes', '--log-file=' + trace, program],
                              capture_output=True, text=True)
        if done.returncode:
            print(done.stdout + done.stderr)
            return 1
        slot, extent, size = map(int, done.stdout.split())
        stores, loads = [0] * size, 0
        with open(trace) as f:
            for line in f:
                if line[:2] not in (' S', ' M', ' L'):
                    continue
                address, _, count = line[3:].partition(',')
                at = int(address, 16) - slot
                if not 0 <= at < size:
                    continue
                if line[1] != 'S':
                    loads += 1
                if line[1] != 'L':
                    for i in range(at, min(at + int(count), size)):
                        stores[i] += 1
    wrong = [i for i, n in enumerate(stores[:extent]) if n != 1]
    print('%d bytes, %d stored once, %d not at all, %d more than once; %d loads'
          % (extent, extent - len(wrong), sum(not stores[i] for i in wrong), sum(stores[i] > 1 for i in wrong), loads))
    if wrong:
        print('first: byte %d, stored %d times' % (wrong[0], stores[wrong[0]]))
    return 1 if wrong or loads else 0


if __name__ == '__main__':
    sys.exit(main())
