/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's configuration: stokerd.yaml, then stokerd.yaml.d/NAME.yaml in name order, walked by
 * one key table. Owned by main.c; a reload builds a new one and hands its streams over.
 */
#ifndef STKD_CONF_H
#define STKD_CONF_H

#include "proto/keys.h"
#include "proto/spec.h"

struct stkd_conf {
	char *socket; /* path of the control socket; default /run/stoker/stokerd.sock */
	uint64_t
		memory; /* bytes for slots of all feeds; 0: a quarter of what we may use, at most 16 GiB */
	uint64_t
		cpu; /* share of the allowed cores in parts per million; "0.25"; at least one worker */
	uint32_t workers;           /* worker threads in all; 0: from cpu */
	int lock, numa;             /* enum stk_need; -1: by kind of daemon */
	uint32_t attach_timeout_ms; /* a feed waits this long for all its seats; 300s */
	uint32_t seat_grace_ms; /* a vacant seat of a shared feed keeps its slots this long; 60s */
	uint32_t linger_ms;     /* private daemon: ends this long after its last client; 5s */
	uint64_t header_max;    /* bytes of a shard's header; 100000000 */
	char **users; /* names or ids that may attach; NULL-terminated; NULL: whoever may open the socket */
	char **groups;
	struct stk_spec **streams; /* each with a name and data */
	size_t nstreams;
};

extern const struct stk_key_table stkd_conf_table;

/* Built-in defaults, no streams. */
int stkd_conf_new(struct stkd_conf **ret, struct stk_err *err);
/* @path: a file; a missing "<path>.d" is fine. Errors name file and line. */
int stkd_conf_load(const char *path, struct stkd_conf **ret, struct stk_err *err);
struct stkd_conf *stkd_conf_free(struct stkd_conf *conf);
STK_DEFINE_CLEANUP(struct stkd_conf *, stkd_conf_free)

const struct stk_spec *stkd_conf_stream(const struct stkd_conf *conf, const char *name);

#endif
