/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A segment of a packed row: what the plan puts together and the assembly copies. Plain value.
 */
#ifndef STK_PROTO_SEGMENT_H
#define STK_PROTO_SEGMENT_H

#include <stdint.h>

/* A sample, or a piece of one: elements [from, from + length). Under separator: true an element
 * behind the sample's last one is its separator. */
struct stk_segment {
	uint64_t id;
	uint64_t position; /* of the sample among the arrivals of the epoch */
	uint32_t from, length;
};

#endif
