/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What waking somebody costs on this machine: two processes and one futex word that they share, as
 * a daemon and its trainer do. A yardstick for how late a consumer of an empty ring wakes. Across
 * cores it costs many times of what it does on one, and left alone the scheduler puts a pair that only
 * ever waits for each other on either: so it is told where. A child of its own, gone before it returns.
 */
#ifndef STOKER_BENCHWAKE_H
#define STOKER_BENCHWAKE_H

#include "tools/stoker/benchtimes.h"

#include <sys/types.h>

struct benchwake_cores {
	int ours, theirs;
};

/* One core that we may run on, and another that process may; the same one when there is no other.
 * Return: 0 or a negative errno. */
int benchwake_cores(pid_t pid, struct benchwake_cores *ret);

/* Adds, for each of `rounds` wake-ups between two processes on these cores, the time from before the
 * wake to the woken one's return. Return: 0 or a negative errno. */
int benchwake_measure(const struct benchwake_cores *cores, unsigned rounds,
		      struct benchtimes *times);

#endif
