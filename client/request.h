/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a client asks for: the options of stk_client_open(), checked, copied and completed from the
 * environment. Belongs to its client; any thread, one at a time.
 */
#ifndef STK_CLIENT_REQUEST_H
#define STK_CLIENT_REQUEST_H

#include <jansson.h>

#include "client/stoker.h"
#include "proto/err.h"
#include "proto/state.h"

struct stk__request {
	char *stream; /* NULL: the spec has data */
	char *job;
	char *socket; /* NULL: found by the kind of daemon */
	char *private_name;
	json_t *spec; /* only the keys given; data made absolute */
	bool private_daemon;
	uint32_t rank, world, replica, replicas;
	int attach_timeout_ms; /* -1 or positive */
	int reconnect_ms;
	void (*progress)(void *data, const char *stage, uint64_t done, uint64_t total);
	void *progress_data;
	char *pci; /* NULL: no device */
	int32_t host_node;
	int (*interrupted)(void *data); /* may be NULL */
	void *interrupt_data;
	uint8_t state[STK_STATE_SIZE_MAX];
	size_t state_size; /* 0: the beginning */
	bool rejoin;       /* state is our own position in a job that may be running */
};

int stk__request_init(struct stk__request *request, const struct stk_client_opts *opts,
		      struct stk_err *err);
void stk__request_deinit(struct stk__request *request);

/* Puts the current directory before a relative path; malloc()ed, NULL: no memory or directory. */
char *stk__absolute(const char *path);

#endif
