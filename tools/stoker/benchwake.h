/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What waking somebody costs on this machine: two processes and one futex word that they share, as
 * a daemon and its trainer do. A yardstick for how late a consumer of an empty ring wakes. A child of
 * its own, gone before it returns.
 */
#ifndef STOKER_BENCHWAKE_H
#define STOKER_BENCHWAKE_H

#include "tools/stoker/benchtimes.h"

/* Adds, for each of `rounds` wake-ups, the time from before the wake to the woken one's return.
 * Return: 0 or a negative errno. */
int benchwake_measure(unsigned rounds, struct benchtimes *times);

#endif
