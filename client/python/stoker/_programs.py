# SPDX-License-Identifier: Apache-2.0
"""The programs that a wheel carries within the package, as commands of the environment."""
import os
import sys


def _run(name):
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", name)
    os.execv(program, [name] + sys.argv[1:])


def stokerd():
    _run("stokerd")


def stoker():
    _run("stoker")


def stokerctl():
    _run("stokerctl")
