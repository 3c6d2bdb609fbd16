/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server: event loop, control socket, signals, worker pools, and the lists of connections and
 * jobs. One per process. Everything in serve/ but feeds' insides belongs to the loop's thread.
 */
#ifndef STKD_SERVER_H
#define STKD_SERVER_H

#include <uv.h>

#include "daemon/assemble/pool.h"
#include "daemon/conf.h"
#include "daemon/memory/topology.h"
#include "daemon/serve/trust.h"

struct stkd_conn;
struct stkd_job;

struct stkd_server_opts {
	struct stkd_conf *conf;    /* taken over */
	const char *conf_path;     /* for reload; NULL: none */
	const char *socket;        /* NULL: conf's */
	bool private_mode;         /* ends `linger` after its last client; same user only */
	int ready_fd;              /* gets "ok\n" or "error: ...\n"; -1: none */
	const char *remove_at_end; /* a file (our log) to remove at a clean end; NULL: none */
	uint32_t workers;          /* 0: conf's */
	uint64_t memory;           /* 0: conf's */
	uint32_t linger_ms;        /* 0: conf's */
};

struct stkd_server {
	uv_loop_t loop;
	uv_poll_t listener;
	uv_timer_t tick;   /* progress, grace and timeouts; runs only while something waits */
	uv_timer_t linger; /* private mode: nobody is attached */
	uv_timer_t retry;  /* accept again after descriptors ran out */
	uv_async_t fault;  /* a worker found a seat to end */
	uv_signal_t signals[6];
	struct stkd_conf *conf;
	struct stkd_trust trust;
	const char *conf_path, *remove_at_end;
	char *socket_path;
	int listen_fd, lock_fd;
	bool private_mode, activated, stopping;
	struct stkd_topology topology;
	struct stkd_pool *pools[STKD_NODES_MAX]; /* as topology.nodes; one more than none */
	unsigned npools, workers;
	uint64_t memory_limit;
	_Atomic uint64_t memory_used,
		memory_leaving; /* leaving: a part of it, of feeds that have ended */
	uint32_t linger_ms;
	uint64_t started_ns;
	struct stkd_conn *conns;
	struct stkd_job *jobs;
	unsigned nconns, nseats;
	uint64_t fd_limit; /* descriptors that this process may have */
};

/* Runs until told to stop. Return: exit status. */
int stkd_server_run(const struct stkd_server_opts *opts);

/* Where numa and lock of a spec end up: system daemon require, private try, unless stated. */
int stkd_server_need(const struct stkd_server *server, int spec, int conf);

/* Starts the tick; it stops by itself when nothing waits any more. */
void stkd_server_want_tick(struct stkd_server *server);
/* Runs free_fn(data) on a work thread: to give gigabytes back takes longer than the loop may. */
void stkd_server_free_later(struct stkd_server *server, void (*free_fn)(void *data), void *data);
/* A connection or seat came or went: private mode decides how long to live. */
void stkd_server_count(struct stkd_server *server);

#endif
