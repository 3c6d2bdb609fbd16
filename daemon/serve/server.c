/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/server.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#ifdef HAVE_SYSTEMD
#include <systemd/sd-daemon.h>
#endif

#include "daemon/log.h"
#include "daemon/memory/memfile.h"
#include "daemon/serve/conn.h"
#include "daemon/serve/job.h"
#include "daemon/serve/listener.h"
#include "proto/spec.h"

#define TICK_MS     250
#define RETRY_MS    1000
#define MEMORY_MAX  (UINT64_C(16) << 30)
#define WORKERS_MAX 512

static void notify(const char *state)
{
#ifdef HAVE_SYSTEMD
	sd_notify(0, state);
#else
	(void)state;
#endif
}

int stkd_server_need(const struct stkd_server *server, int spec, int conf)
{
	if (spec >= 0)
		return spec;
	if (conf >= 0)
		return conf;
	return server->private_mode ? STK_NEED_TRY : STK_NEED_REQUIRE;
}

/* Life and death. */

static void on_connect(uv_poll_t *poll, int status, int events);

static void stop(struct stkd_server *server)
{
	if (server->stopping)
		return;
	server->stopping = true;
	notify("STOPPING=1");
	while (server->conns)
		stkd_conn_close(server->conns, NULL);
	uv_poll_stop(&server->listener);
	uv_stop(&server->loop);
}

static void on_linger(uv_timer_t *timer)
{
	struct stkd_server *server = timer->data;

	/* Somebody may have connected in this very turn of the loop. */
	on_connect(&server->listener, 0, UV_READABLE);
	if (server->nconns)
		return;
	log_info("nobody is attached, ending");
	stop(server);
}

void stkd_server_count(struct stkd_server *server)
{
	if (!server->private_mode || server->stopping)
		return;
	if (server->nconns)
		uv_timer_stop(&server->linger);
	else
		uv_timer_start(&server->linger, on_linger, server->linger_ms, 0);
}

struct later {
	uv_work_t work;
	void (*free_fn)(void *data);
	void *data;
};

static void later_work(uv_work_t *work)
{
	struct later *later = work->data;

	later->free_fn(later->data);
}

static void later_done(uv_work_t *work, int status)
{
	(void)status;
	free(work->data);
}

void stkd_server_free_later(struct stkd_server *server, void (*free_fn)(void *data), void *data)
{
	struct later *later = calloc(1, sizeof(*later));

	if (!later) {
		free_fn(data);
		return;
	}
	*later = (struct later){.free_fn = free_fn, .data = data};
	later->work.data = later;
	uv_queue_work(&server->loop, &later->work, later_work, later_done);
}

static void on_tick(uv_timer_t *timer)
{
	struct stkd_server *server = timer->data;
	bool again = false;

	for (struct stkd_conn *c = server->conns, *next; c; c = next) {
		next = c->next;
		again |= stkd_conn_tick(c);
	}
	for (struct stkd_job *job = server->jobs, *next; job; job = next) {
		next = job->next;
		again |= stkd_job_tick(job);
	}
	if (!again)
		uv_timer_stop(timer);
}

void stkd_server_want_tick(struct stkd_server *server)
{
	if (!server->stopping && !uv_is_active((uv_handle_t *)&server->tick))
		uv_timer_start(&server->tick, on_tick, TICK_MS, TICK_MS);
}

static void on_fault(uv_async_t *async)
{
	stkd_job_faults(async->data);
}

/* Listening. */

static void on_retry(uv_timer_t *timer)
{
	struct stkd_server *server = timer->data;

	uv_poll_start(&server->listener, UV_READABLE, on_connect);
}

static void on_connect(uv_poll_t *poll, int status, int events)
{
	struct stkd_server *server = poll->data;
	int fd;

	(void)events;
	if (status < 0)
		return;
	fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd >= 0) {
		stkd_conn_new(server, fd);
		return;
	}
	if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
		return;
	/* Out of descriptors: the socket stays readable, so look away for a while. */
	log_warn("accept: %m; trying again in %d ms", RETRY_MS);
	uv_poll_stop(&server->listener);
	uv_timer_start(&server->retry, on_retry, RETRY_MS, 0);
}

/* Signals. */

/* Running jobs hold their own specs; only what comes later sees the new ones. */
static int take_conf(struct stkd_server *server, struct stk_err *err)
{
	_cleanup_(stkd_conf_freep) struct stkd_conf *conf = NULL;
	struct stkd_trust trust;
	int r = stkd_conf_load(server->conf_path, &conf, err);

	if (r == 0)
		r = stkd_trust_init(&trust, conf, err);
	if (r < 0)
		return r;
	stkd_trust_deinit(&server->trust);
	server->trust = trust;
	stkd_conf_free(server->conf);
	server->conf = STK_STEAL(conf);
	return 0;
}

static void reload(struct stkd_server *server)
{
	struct stk_err err;

	if (!server->conf_path) {
		log_info("SIGHUP: there is no configuration file to read again");
		return;
	}
	notify("RELOADING=1");
	if (take_conf(server, &err) < 0)
		log_error("reload: %s; the old configuration stays", err.text);
	else
		log_info("reloaded %s: %zu streams", server->conf_path, server->conf->nstreams);
	notify("READY=1");
}

static void on_signal(uv_signal_t *handle, int number)
{
	struct stkd_server *server = handle->data;

	if (number == SIGHUP && !server->private_mode) {
		reload(server);
		return;
	}
	if (number != SIGTERM && number != SIGINT)
		return;
	/* A scheduler signals the whole group while the trainer still writes its checkpoint. */
	if (server->private_mode && server->nseats) {
		log_info("signal %d: %u seats are attached, staying until they have gone", number,
			 server->nseats);
		return;
	}
	log_info("signal %d: ending", number);
	stop(server);
}

static void watch_signals(struct stkd_server *server)
{
	static const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT};

	signal(SIGPIPE, SIG_IGN);
	for (size_t i = 0; i < STK_ARRAY_SIZE(numbers); i++) {
		uv_signal_init(&server->loop, &server->signals[i]);
		server->signals[i].data = server;
		uv_signal_start(&server->signals[i], on_signal, numbers[i]);
		uv_unref((uv_handle_t *)&server->signals[i]);
	}
}

/* Building. */

static unsigned count_workers(const struct stkd_server *server, const struct stkd_server_opts *opts)
{
	uint64_t n = opts->workers ? opts->workers : server->conf->workers;

	if (!n && server->private_mode)
		n = STK_MIN(server->topology.ncpus - 1, 2); /* a core is the trainer's */
	if (!n)
		n = server->topology.ncpus * server->conf->cpu / 1000000;
	return (unsigned)STK_MIN(STK_MAX(n, 1), WORKERS_MAX);
}

/* One pool for each node that has cores of ours; a node without shares the first one's. */
static int start_pools(struct stkd_server *server, const struct stkd_server_opts *opts,
		       struct stk_err *err)
{
	unsigned nnodes = STK_MAX(server->topology.nnodes, 1), used = 0;
	unsigned total = count_workers(server, opts);

	server->npools = nnodes; /* from now on they are freed, those that there are */
	for (unsigned i = 0; i < nnodes; i++) {
		const struct stkd_node *node =
			server->topology.nnodes ? &server->topology.nodes[i] : NULL;
		unsigned share;
		int r;

		if (node && !node->ncpus)
			continue;
		share = node ? STK_MAX(total * node->ncpus / STK_MAX(server->topology.ncpus, 1), 1)
			     : total;
		r = stkd_pool_new(share, node ? &node->cpus : NULL, "stoker", &server->pools[i],
				  err);
		if (r < 0)
			return r;
		used += share;
	}
	server->workers = used;
	for (unsigned i = 0; i < nnodes; i++)
		for (unsigned j = 0; j < nnodes && !server->pools[i]; j++)
			server->pools[i] = server->pools[j];
	return used ? 0 : stk_err_set(err, -EINVAL, "no core is allowed to run workers on");
}

static void free_pools(struct stkd_server *server)
{
	for (unsigned i = 0; i < server->npools; i++) {
		struct stkd_pool *pool = server->pools[i];

		for (unsigned j = i; j < server->npools; j++)
			if (server->pools[j] == pool)
				server->pools[j] = NULL;
		if (pool)
			stkd_pool_free(pool);
	}
}

static void set_memory(struct stkd_server *server, const struct stkd_server_opts *opts)
{
	uint64_t allowed = stkd_memory_limit("/proc", "/sys");

	server->memory_limit = opts->memory ? opts->memory : server->conf->memory;
	if (!server->memory_limit)
		server->memory_limit = STK_MIN(allowed / 4, MEMORY_MAX);
	if (server->memory_limit > allowed) {
		log_warn("memory: %" PRIu64 " bytes configured, only %" PRIu64 " are allowed here",
			 server->memory_limit, allowed);
		server->memory_limit = allowed;
	}
}

#ifdef HAVE_SYSTEMD
/* The socket that the service manager made; it has a path of its own. */
static int take_socket(struct stkd_server *server, struct stk_err *err)
{
	struct sockaddr_un address = {0};
	socklen_t size = sizeof(address) - 1;

	server->listen_fd = SD_LISTEN_FDS_START;
	server->activated = true;
	if (sd_is_socket(server->listen_fd, AF_UNIX, SOCK_STREAM, 1) <= 0)
		return stk_err_set(err, -EINVAL,
				   "the socket passed by the service manager is not a listening "
				   "Unix stream socket");
	if (getsockname(server->listen_fd, (struct sockaddr *)&address, &size) == 0)
		server->socket_path = strdup(address.sun_path);
	return server->socket_path ? 0 : stk_err_set(err, -ENOMEM, "out of memory");
}
#endif

static int open_socket(struct stkd_server *server, const struct stkd_server_opts *opts,
		       struct stk_err *err)
{
	const char *path = opts->socket ? opts->socket : server->conf->socket;

#ifdef HAVE_SYSTEMD
	if (!server->private_mode && sd_listen_fds(1) > 0)
		return take_socket(server, err);
#endif
	server->socket_path = strdup(path);
	if (!server->socket_path)
		return stk_err_set(err, -ENOMEM, "out of memory");
	return stkd_listener_open(path, server->private_mode ? 0600 : 0666, &server->listen_fd,
				  &server->lock_fd, err);
}

static void init_handles(struct stkd_server *server)
{
	uv_timer_init(&server->loop, &server->tick);
	uv_timer_init(&server->loop, &server->linger);
	uv_timer_init(&server->loop, &server->retry);
	uv_async_init(&server->loop, &server->fault, on_fault);
	server->tick.data = server->linger.data = server->retry.data = server->fault.data = server;
	watch_signals(server);
}

static int start_server(struct stkd_server *server, const struct stkd_server_opts *opts,
			struct stk_err *err)
{
	int r;

	server->linger_ms = opts->linger_ms ? opts->linger_ms : server->conf->linger_ms;
	set_memory(server, opts);
	r = stkd_trust_init(&server->trust, server->conf, err);
	if (r < 0)
		return r;
	r = stkd_topology_init(&server->topology, "/sys", NULL, err);
	if (r < 0)
		return r;
	r = open_socket(server, opts, err);
	if (r < 0)
		return r;
	r = start_pools(server, opts, err);
	if (r < 0)
		return r;
	r = uv_poll_init(&server->loop, &server->listener, server->listen_fd);
	if (r < 0)
		return stk_err_set(err, r, "event loop: %s", uv_strerror(r));
	server->listener.data = server;
	uv_poll_start(&server->listener, UV_READABLE, on_connect);
	return 0;
}

static void tell_ready(const struct stkd_server_opts *opts, const struct stk_err *err)
{
	char text[1100];
	int n = err ? snprintf(text, sizeof(text), "error: %s\n", err->text)
		    : snprintf(text, sizeof(text), "ok\n");

	if (opts->ready_fd < 0)
		return;
	(void)!write(opts->ready_fd, text, (size_t)n);
	close(opts->ready_fd);
}

static void close_handle(uv_handle_t *handle, void *unused)
{
	(void)unused;
	if (!uv_is_closing(handle))
		uv_close(handle, NULL);
}

static void end_server(struct stkd_server *server)
{
	/* Work under way was told to stop; its callbacks run here and end the jobs. */
	uv_walk(&server->loop, close_handle, NULL);
	uv_run(&server->loop, UV_RUN_DEFAULT);
	free_pools(server); /* with the last batches in flight the last feeds go */
	uv_loop_close(&server->loop);
	if (server->lock_fd >= 0)
		stkd_listener_remove(server->socket_path);
	if (server->remove_at_end)
		unlink(server->remove_at_end);
	stk_close(server->listen_fd);
	stk_close(server->lock_fd);
	stkd_trust_deinit(&server->trust);
	stkd_conf_free(server->conf);
	free(server->socket_path);
	free(server);
}

int stkd_server_run(const struct stkd_server_opts *opts)
{
	struct stkd_server *server = calloc(1, sizeof(*server));
	struct rlimit limit;
	struct stk_err err;
	int r;

	if (!server || uv_loop_init(&server->loop) < 0) {
		log_error("out of memory");
		free(server);
		return 1;
	}
	server->conf = opts->conf;
	server->conf_path = opts->conf_path;
	server->remove_at_end = opts->remove_at_end;
	server->private_mode = opts->private_mode;
	server->listen_fd = server->lock_fd = -1;
	server->started_ns = stkd_now_ns();
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
		server->fd_limit = limit.rlim_cur;
	init_handles(server);
	r = start_server(server, opts, &err);
	tell_ready(opts, r < 0 ? &err : NULL);
	if (r < 0) {
		log_error("%s", err.text);
	} else {
		log_info("release " STK_RELEASE " listens at %s, pid %d, %u workers, %" PRIu64
			 " MiB for slots",
			 server->socket_path, (int)getpid(), server->workers,
			 server->memory_limit >> 20);
		notify("READY=1");
		stkd_server_count(server);
		uv_run(&server->loop, UV_RUN_DEFAULT);
	}
	end_server(server);
	return r < 0 ? 1 : 0;
}
