/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/fake_daemon.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define CHECK(what)                                                                                \
	do {                                                                                       \
		if (!(what)) {                                                                     \
			fprintf(stderr, "fake daemon: %s:%d: %s: %m\n", __FILE__, __LINE__,        \
				#what);                                                            \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

static const char schema[] =
	"{\"stream\":\"fake\",\"job\":\"j\",\"epochs\":2,\"fields\":["
	"{\"name\":\"ids\",\"dtype\":\"I32\",\"kind\":\"ragged\",\"shape\":[]},"
	"{\"name\":\"image\",\"dtype\":\"U8\",\"kind\":\"fixed\",\"shape\":[2,3]}],"
	"\"classes\":[{\"edge\":8,\"rows\":3,\"width_min\":8,\"width_max\":8,\"width_multiple\":8,"
	"\"edge2\":5,\"width2_min\":2,\"width2_max\":4}]"
	","
	"\"counts\":{\"samples\":10,\"steps\":4,\"truncated\":1},\"fingerprint\":\"00\","
	"\"spec\":{\"rows\":3,\"data\":[{\"path\":\"/d\"}]}}";

static void *make_file(uint64_t size, bool unsealed, int *ret_fd)
{
	int fd = memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *map;

	CHECK(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
	CHECK(unsealed || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
	map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(map != MAP_FAILED);
	*ret_fd = fd;
	return map;
}

static void drop_feed(struct fake_daemon *f)
{
	if (!f->control)
		return;
	munmap(f->seat, f->seat->file_size);
	munmap(f->slots, f->control->slots_file_size);
	munmap(f->control, f->control->file_size - f->lie_size);
	f->control = NULL;
	for (int i = 0; i < FAKE_FDS; i++)
		stk_closep(&f->fds[i]);
}

static void fill_header(struct fake_daemon *f, const struct stk_shm_control *plan)
{
	struct stk_state_header state;

	memcpy(f->control, plan, offsetof(struct stk_shm_control, ready));
	f->control->file_size += f->lie_size;
	f->control->world = 1;
	f->control->micros = 1;
	f->control->replicas = f->replicas ? f->replicas : 1;
	memcpy((char *)f->control + plan->schema_off, schema, strlen(schema));
	stk_state_header_init(&state);
	state.seed = 17;
	memcpy((char *)f->control + plan->state_off, &state, sizeof(state));
	if (f->start)
		memcpy((char *)f->control + plan->start_off, f->start, plan->start_size);
	atomic_store(&f->control->ready, 1);
}

void fake_build(struct fake_daemon *f)
{
	struct stk_shm_geometry geometry = {.nslots = FAKE_SLOTS,
					    .nfields = 2,
					    .nclasses = 1,
					    .slot_size = FAKE_SLOT_SIZE,
					    .schema_size = strlen(schema),
					    .state_size = sizeof(struct stk_state_header),
					    .start_size =
						    f->start ? (uint32_t)strlen(f->start) : 0};
	struct stk_shm_control plan;
	struct stk_shm_seat seat;

	drop_feed(f);
	CHECK(stk_shm_control_plan(&geometry, &plan) == 0);
	f->control = make_file(plan.file_size, f->unsealed, &f->fds[FAKE_CONTROL]);
	f->slots = make_file(plan.slots_file_size, false, &f->fds[FAKE_SLOTS_FD]);
	f->seat = make_file(stk_shm_seat_plan(plan.ring_entries, &seat), false, &f->fds[FAKE_SEAT]);
	memcpy(f->seat, &seat, sizeof(seat));
	f->fds[FAKE_KICK] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	f->fds[FAKE_WAKE] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	fill_header(f, &plan);
	memset(f->slots, 0xAA, plan.slots_file_size); /* stale bytes are to be seen */
	f->pub = (struct stk_ring_pub){
		.shm = f->control,
		.entries = (struct stk_shm_entry *)((char *)f->control + plan.ring_off),
		.mask = plan.ring_entries - 1,
		.tail = f->first,
	};
	atomic_store(&f->control->tail, f->first);
	f->drain = (struct stk_ring_drain){
		.shm = f->seat,
		.entries = (_Atomic uint64_t *)((char *)f->seat + seat.ring_off),
		.mask = plan.ring_entries - 1,
	};
}

/* Sends and gives the reference up. */
static void send_json(int conn, json_t *json, const int *fds, size_t nfds)
{
	struct stk_err err;

	CHECK(json);
	if (stk_msg_send(conn, json, fds, nfds, 5000, &err) < 0)
		fprintf(stderr, "fake daemon: %s\n", err.text);
	json_decref(json);
}

void fake_reply(struct fake_daemon *f, int conn, size_t nfds)
{
	fake_build(f);
	send_json(conn,
		  stk_msg_reply(json_pack("{s:{s:s,s:i,s:i}}", "progress", "stage", "index", "done",
					  1, "total", 2),
				true),
		  NULL, 0);
	send_json(
		conn,
		stk_msg_reply(json_pack("{s:i,s:i,s:s,s:i,s:s,s:s,s:i,s:I,s:i,s:i,s:s*}",
					"protocol", f->protocol ? f->protocol : STK_MSG_PROTOCOL,
					"layout", f->layout ? f->layout : STK_SHM_MAJOR, "release",
					"9.9", "plan_version", 1, "stream", "fake", "job", "j",
					"seat", 0, "first", (json_int_t)f->first, "era",
					(int)f->era, "pid", (int)getpid(), "notice", f->notice),
			      false),
		f->fds, nfds);
}

static void answer(struct fake_daemon *f, int conn, const json_t *call)
{
	const char *method = json_string_value(json_object_get(call, "method"));

	json_decref(f->last_call);
	f->last_call = json_deep_copy(call);
	if (!strcmp(method, "io.stoker.Attach")) {
		atomic_store(&f->conn, conn);
		if (f->attach)
			f->attach(f, conn, call);
		else
			fake_reply(f, conn, FAKE_FDS);
		atomic_fetch_add(&f->attaches, 1);
	} else if (!strcmp(method, "io.stoker.Seek")) {
		send_json(conn, stk_msg_reply(json_pack("{s:i}", "era", (int)++f->era), false),
			  NULL, 0);
	} else {
		send_json(conn, stk_msg_reply(json_pack("{s:s}", "method", method), false), NULL,
			  0);
	}
}

static void serve(struct fake_daemon *f, int conn)
{
	_cleanup_(stk_msg_in_deinit) struct stk_msg_in in = {0};
	json_t *call;

	for (;;) {
		struct pollfd p[2] = {{.fd = conn, .events = POLLIN},
				      {.fd = f->stop[0], .events = POLLIN}};

		poll(p, 2, -1);
		if (p[1].revents || stk_msg_recv(conn, &in, NULL) <= 0)
			break;
		while (stk_msg_next(&in, &call, NULL) > 0) {
			answer(f, conn, call);
			json_decref(call);
		}
	}
	atomic_store(&f->conn, -1);
	close(conn);
}

static void *run(void *data)
{
	struct fake_daemon *f = data;

	for (;;) {
		struct pollfd p[2] = {{.fd = f->listener, .events = POLLIN},
				      {.fd = f->stop[0], .events = POLLIN}};
		int conn;

		poll(p, 2, -1);
		if (p[1].revents)
			return NULL;
		conn = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC);
		if (conn >= 0)
			serve(f, conn);
	}
}

void fake_start(struct fake_daemon *f)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};

	for (int i = 0; i < FAKE_FDS; i++)
		f->fds[i] = -1;
	atomic_store(&f->conn, -1);
	if (!f->socket[0]) {
		strcpy(f->folder, "/tmp/stoker-test-XXXXXX");
		CHECK(mkdtemp(f->folder));
		snprintf(f->socket, sizeof(f->socket), "%s/s.sock", f->folder);
	}
	strcpy(addr.sun_path, f->socket);
	f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(bind(f->listener, (struct sockaddr *)&addr, sizeof(addr)) == 0);
	CHECK(listen(f->listener, 8) == 0 && pipe2(f->stop, O_CLOEXEC) == 0);
	CHECK(pthread_create(&f->thread, NULL, run, f) == 0);
}

void fake_stop(struct fake_daemon *f)
{
	close(f->stop[1]);
	pthread_join(f->thread, NULL);
	close(f->stop[0]);
	close(f->listener);
	unlink(f->socket);
	if (f->folder[0])
		rmdir(f->folder);
	drop_feed(f);
	json_decref(f->last_call);
	f->last_call = NULL;
}

struct stk_shm_desc *fake_fill(struct fake_daemon *f, uint32_t slot, uint64_t epoch, uint64_t step,
			       uint32_t rows_real)
{
	uint8_t *map = (uint8_t *)f->control;
	struct stk_shm_desc *d = (struct stk_shm_desc *)(map + f->control->desc_off +
							 (uint64_t)slot * f->control->desc_size);
	struct stk_shm_field *fields = (struct stk_shm_field *)(d + 1);
	uint8_t *data = f->slots + (uint64_t)slot * FAKE_SLOT_SIZE;

	memset(d, 0, sizeof(*d));
	*d = (struct stk_shm_desc){.slot = slot,
				   .era = f->era,
				   .epoch = epoch,
				   .step = step,
				   .flags = STK_SHM_DESC_LAST_MICRO,
				   .rows = rows_real,
				   .rows_real = rows_real,
				   .width = FAKE_WIDTH,
				   .max_length = 5,
				   .nids = rows_real,
				   .real_tokens = 11,
				   .padded_tokens = rows_real * FAKE_WIDTH,
				   .global_tokens = 11,
				   .extent_size = 1024,
				   .ids_off = 1024,
				   .lengths_off = 1088,
				   .cursor_size = sizeof(uint64_t)};
	memcpy(d->cursor, &step, sizeof(step));
	fields[0] = (struct stk_shm_field){.offset = 0,
					   .size = (uint64_t)rows_real * FAKE_WIDTH * 4,
					   .nlead = 2,
					   .lead = {rows_real, FAKE_WIDTH}};
	fields[1] = (struct stk_shm_field){
		.offset = 512, .size = (uint64_t)rows_real * 6, .nlead = 1, .lead = {rows_real, 0}};
	for (uint32_t r = 0; r < rows_real; r++) {
		((uint64_t *)(data + 1024))[r] = step * 1000 + r;
		((uint32_t *)(data + 1088))[r] = r + 1;
		for (uint32_t i = 0; i < FAKE_WIDTH; i++)
			((int32_t *)data)[r * FAKE_WIDTH + i] = (int32_t)(step * 1000 + r);
	}
	return d;
}

static void wake(struct fake_daemon *f)
{
	static const uint64_t one = 1;
	uint32_t bits = stk_ring_waiters(f->seat);

	if (bits & STK_SHM_WAIT_FUTEX)
		syscall(SYS_futex, &f->control->tail, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
	if (bits & STK_SHM_WAIT_FD)
		CHECK(write(f->fds[FAKE_WAKE], &one, sizeof(one)) == sizeof(one));
}

void fake_entry(struct fake_daemon *f, uint32_t kind, uint32_t slot, uint64_t epoch, uint64_t step)
{
	struct stk_shm_entry e = {
		.kind = kind, .slot = slot, .era = f->era, .epoch = epoch, .step = step};

	stk_ring_publish(&f->pub, &e);
	wake(f);
}

void fake_publish(struct fake_daemon *f, uint32_t slot, uint64_t epoch, uint64_t step)
{
	fake_fill(f, slot, epoch, step, FAKE_ROWS);
	fake_entry(f, STK_SHM_BATCH, slot, epoch, step);
}

void fake_hang_up(struct fake_daemon *f)
{
	int conn = atomic_load(&f->conn);

	CHECK(conn >= 0);
	shutdown(conn, SHUT_RDWR);
	/* The thread sees the end, closes the connection and accepts the next one. */
	while (atomic_load(&f->conn) >= 0)
		usleep(1000);
}

int fake_count(const char *name)
{
	char path[64];
	int n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/self/%s", name);
	dir = opendir(path);
	CHECK(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}
