/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every fuzz target is: one function of the bytes that somebody sent. libFuzzer calls it in a
 * build with -Dfuzz=true, standalone.c calls it over the files of a corpus in all others.
 */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
