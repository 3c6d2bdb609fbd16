/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A strict stand-in for the CUDA runtime: the functions that libstoker-cuda uses, with threads for
 * streams, real order between streams and events, and contexts that come into being as CUDA 12
 * makes them. What no correct program does ends the process with a sentence on standard error.
 * "Device memory" is host memory, so a test may look at it once a stream is synchronised.
 */
#ifndef STANDIN_H
#define STANDIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STANDIN_PUBLIC __attribute__((visibility("default")))

/* Calls of a function since the start or the last standin_reset(); "cudaMemcpyAsync". */
STANDIN_PUBLIC uint64_t standin_calls(const char *name);
/* Once all is balanced: forgets counts, errors and contexts; two devices, no delay. */
STANDIN_PUBLIC void standin_reset(void);
/* From the nth call on (1: the next one) so many calls of a function fail with that code. */
STANDIN_PUBLIC void standin_fail(const char *name, unsigned nth, unsigned times, int code);
STANDIN_PUBLIC void standin_devices(int n);
/* Each copy takes so long. */
STANDIN_PUBLIC void standin_delay_us(unsigned us);
STANDIN_PUBLIC bool standin_has_context(int device);
/* Somebody captures a graph in global mode: calls that could disturb it fail unless relaxed. */
STANDIN_PUBLIC void standin_capture(bool on);
/* A graph is captured on this stream: events recorded there are taken into it. */
STANDIN_PUBLIC void standin_capture_on(void *stream, bool on);
/*
 * The device is broken: from now on what it is to do fails with that code, and so does what frees
 * its memory, which is freed all the same. Until the next reset.
 */
STANDIN_PUBLIC void standin_break(int code);
/* The error that the thread's next check would find. */
STANDIN_PUBLIC int standin_last_error(void);
/* A kernel: runs on the stream's thread in its order. */
STANDIN_PUBLIC void standin_launch(void *stream, void (*fn)(void *), void *arg);
/* Copies from memory that is neither registered nor allocated pinned. */
STANDIN_PUBLIC uint64_t standin_pageable(void);
STANDIN_PUBLIC uint64_t standin_registered_bytes(void);
/* Ends the process unless everything was given back. Ends default streams. */
STANDIN_PUBLIC void standin_check_balance(void);

#endif
