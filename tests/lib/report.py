#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Short lines for what tests/run did, from meson's JSON log, and the count at its end.

    report.py wanted PATTERN NAME          exit status: does NAME match?
    report.py select DIR PATTERN LONG SUITE...   names of tests, each ends with a NUL
    report.py log DIR                      one line for each test of the last `meson test`
    report.py line VERDICT NAME NOTE [LOG] one line, and LOG when the verdict is FAIL
    report.py total                        "N passed, N failed, N skipped"; exit status 1 if any failed

The counts lie in the file $STOKER_TESTS_COUNT, one line "passed failed skipped" for each test.
"""

import fnmatch
import json
import os
import re
import subprocess
import sys

SHOWN_LINES = 80


def matches(pattern, name):
    return not pattern or pattern in name or fnmatch.fnmatch(name, pattern)


def wanted(pattern, name):
    return 0 if matches(pattern, name) else 1


def select(build, pattern, long, *suites):
    text = subprocess.run(["meson", "introspect", "--tests", build], check=True, capture_output=True).stdout
    for test in json.loads(text):
        own = {s.split(":")[-1] for s in test["suite"]}
        name = "%s/%s/%s" % (os.path.basename(build), first_suite(test["suite"]), test["name"])
        if own & set(suites) and matches(pattern, name) and (long or "long" not in own):
            sys.stdout.write(test["name"] + "\0")
    return 0


def first_suite(suites):
    return suites[0].split(":")[-1]


def count(passed, failed, skipped):
    with open(os.environ["STOKER_TESTS_COUNT"], "a") as f:
        f.write("%d %d %d\n" % (passed, failed, skipped))


def put(verdict, name, note, log=None):
    print("%-4s  %-52s  %s" % (verdict, name, note), flush=True)
    if log is not None:
        lines = log.rstrip("\n").split("\n")
        if len(lines) > SHOWN_LINES:
            print("      ... %d lines before" % (len(lines) - SHOWN_LINES))
        print("\n".join("      " + line for line in lines[-SHOWN_LINES:]), flush=True)


def line(verdict, name, note, log=None):
    text = None
    if verdict == "FAIL" and log:
        with open(log, errors="replace") as f:
            text = f.read()
        text = text[max(text.find("\nFAILED: "), 0):]  # ninja: what went well before is not asked for
    put(verdict, name, note, text)
    count(verdict == "ok", verdict == "FAIL", verdict == "skip")
    return 0


def cases(text):
    """Test cases that a program reports: passed, failed, skipped. Zeros when it reports none."""
    ran = re.search(r"^Ran (\d+) tests? in ", text, re.M)
    if ran:
        bad = sum(int(n) for n in re.findall(r"(?:failures|errors|unexpected successes)=(\d+)", text))
        skipped = sum(int(n) for n in re.findall(r"\bskipped=(\d+)", text))
        return int(ran.group(1)) - bad - skipped, bad, skipped
    cmocka = [set(re.findall(r"^\[ +%s +\] (\w+)\s*$" % word, text, re.M)) for word in ("OK", "FAILED", "SKIPPED")]
    if any(cmocka):
        return tuple(len(names) for names in cmocka)
    return tuple(len(re.findall(r"^%s - " % word, text, re.M)) for word in ("ok", "not ok", "skip"))


def reasons(text):
    """Why cases were skipped: unittest says it, cmocka's skip() follows a printed line."""
    found = re.findall(r" \.\.\. skipped ['\"](.*)['\"]$", text, re.M)
    before = ""
    for line in text.split("\n"):
        if re.match(r"\[ +SKIPPED +\] \w+\s*$", line) and before:
            found.append(before.removeprefix("skipped: "))
        before = "" if line.startswith("[") else line.strip() or before
    return sorted(set(found))


def log(build):
    with open(os.path.join(build, "meson-logs", "testlog.json"), errors="replace") as f:
        tests = [json.loads(line) for line in f]
    for test in tests:
        report_test(os.path.basename(build), test)
    return 0


def report_test(build, test):
    text = (test.get("stdout") or "") + "\n" + (test.get("stderr") or "")
    suite, _, name = test["name"].partition(" / ")
    name = "%s/%s/%s" % (build, first_suite(suite.split("+")), name)
    seconds = "%.1f s" % test["duration"]
    passed, failed, skipped = cases(text)
    if test["result"] == "SKIP":
        why = [part for part in text.split("\n") if part.strip()]
        put("skip", name, why[-1].strip() if why else "no reason given")
        count(0, 0, 1)
    elif test["result"] == "OK" and not failed:
        passed = passed or (0 if skipped else 1)
        note = "%d passed" % passed + (", %d skipped" % skipped if skipped else "")
        put("ok" if passed else "skip", name, "%s, %s" % (note, seconds))
        for why in reasons(text):
            print("      skipped: " + why)
        count(passed, 0, skipped)
    else:
        put("FAIL", name, "%s, exit status %s, %s" % (test["result"], test.get("returncode"), seconds), text)
        count(passed, failed or 1, skipped)


def total():
    with open(os.environ["STOKER_TESTS_COUNT"]) as f:
        rows = [[int(n) for n in line.split()] for line in f]
    passed, failed, skipped = (sum(column) for column in zip(*rows)) if rows else (0, 0, 0)
    print("%d passed, %d failed, %d skipped" % (passed, failed, skipped))
    return 1 if failed or not passed else 0


def main():
    commands = {"wanted": wanted, "select": select, "log": log, "line": line, "total": total}
    return commands[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
