/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const fd_names[STK__FDS] = {"control", "slots", "seat", "kick", "wake"};

/* Only memory that cannot shrink under us is mapped: a missing page would be a SIGBUS. */
static int map_file(int fd, enum stk__fd which, int prot, void **ret_map, size_t *ret_size,
		    struct stk_err *err)
{
	const char *name = fd_names[which];
	struct stat st;
	void *map;
	int seals;

	if (fstat(fd, &st) < 0)
		return stk_err_set(err, -errno, "%s file: %m", name);
	seals = fcntl(fd, F_GET_SEALS);
	if (!S_ISREG(st.st_mode) || seals < 0 || !(seals & F_SEAL_SHRINK))
		return stk_err_set(err, -EPROTO,
				   "%s file: not a memory file sealed against shrinking", name);
	if (st.st_size <= 0)
		return stk_err_set(err, -EPROTO, "%s file: empty", name);
	map = mmap(NULL, (size_t)st.st_size, prot, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return stk_err_set(err, -errno, "%s file: cannot map %jd bytes: %m%s", name,
				   (intmax_t)st.st_size,
				   errno == ENOMEM ? " (limits: RLIMIT_AS, vm.max_map_count)" : "");
	*ret_map = map;
	*ret_size = (size_t)st.st_size;
	return 0;
}

static int map_control(struct stk__session *s, int fd, struct stk_err *err)
{
	void *map;
	int r = map_file(fd, STK__FD_CONTROL, PROT_READ, &map, &s->control_size, err);

	if (r == 0)
		s->control = map;
	return r;
}

static int map_slots(struct stk__session *s, int fd, struct stk_err *err)
{
	void *map;
	int r = map_file(fd, STK__FD_SLOTS, PROT_READ | PROT_WRITE, &map, &s->slots_size, err);

	if (r == 0)
		s->slots = map;
	return r;
}

static int map_seat(struct stk__session *s, int fd, struct stk_err *err)
{
	void *map;
	int r = map_file(fd, STK__FD_SEAT, PROT_READ | PROT_WRITE, &map, &s->seat_size, err);

	if (r == 0)
		s->seat = map;
	return r;
}

static int check_files(struct stk__session *s, struct stk_err *err)
{
	const struct stk_shm_control *g = &s->geometry;
	struct stk_shm_seat seat;
	int r;

	r = stk_shm_control_check(s->control, s->control_size, s->slots_size, &s->geometry, err);
	if (r < 0)
		return r;
	memset(&seat, 0, sizeof(seat));
	memcpy(&seat, s->seat, STK_MIN(s->seat_size, offsetof(struct stk_shm_seat, release_tail)));
	r = stk_shm_seat_check(&seat, s->seat_size, g, err);
	if (r < 0)
		return r;
	s->release_off = seat.ring_off;
	if (g->state_size != sizeof(s->state))
		return stk_err_set(err, -EPROTO,
				   "control file: state header of %" PRIu64 " bytes, want %zu",
				   g->state_size, sizeof(s->state));
	memcpy(&s->state, (const uint8_t *)s->control + g->state_off, sizeof(s->state));
	memcpy(s->start, (const uint8_t *)s->control + g->start_off, g->start_size);
	return stk__schema_new((const char *)s->control + g->schema_off, g->schema_size, g->nfields,
			       g->nclasses, &s->schema, err);
}

static struct stk_batch *batch_at(struct stk__session *s, uint32_t slot)
{
	return (struct stk_batch *)(s->batches + slot * s->batch_size);
}

static int make_batches(struct stk__session *s, struct stk_err *err)
{
	const struct stk_shm_control *g = &s->geometry;

	s->batch_size = stk_align_up(
		sizeof(struct stk_batch) + g->nfields * sizeof(struct stk_shm_field), 64);
	s->batches = aligned_alloc(64, g->nslots * s->batch_size);
	if (!s->batches)
		return stk_err_set(err, -ENOMEM, "session: no memory for %" PRIu32 " batches",
				   g->nslots);
	memset(s->batches, 0, g->nslots * s->batch_size);
	for (uint32_t i = 0; i < g->nslots; i++) {
		struct stk_batch *batch = batch_at(s, i);

		batch->session = s;
		batch->data = s->slots + i * g->slot_size;
	}
	return 0;
}

static void init_rings(struct stk__session *s, uint32_t first)
{
	const struct stk_shm_control *g = &s->geometry;

	s->sub = (struct stk_ring_sub){
		.shm = s->control,
		.entries =
			(const struct stk_shm_entry *)((const uint8_t *)s->control + g->ring_off),
		.mask = g->ring_entries - 1,
		.head = first,
	};
	s->rel = (struct stk_ring_rel){
		.shm = s->seat,
		.entries = (_Atomic uint64_t *)((uint8_t *)s->seat + s->release_off),
		.mask = g->ring_entries - 1,
		/* Relaxed: a seat that was vacated carries its position over; nobody else stores here. */
		.tail = atomic_load_explicit(&s->seat->release_tail, memory_order_relaxed),
	};
}

static void session_free(struct stk__session *s)
{
	stk_close(s->sock);
	stk_close(s->kick);
	stk_close(s->wake);
	if (s->pin)
		s->pin->end(s->pin);
	if (s->control)
		munmap((void *)s->control, s->control_size);
	if (s->slots)
		munmap(s->slots, s->slots_size);
	if (s->seat)
		munmap(s->seat, s->seat_size);
	stk__schema_unref(s->schema);
	free(s->batches);
	pthread_mutex_destroy(&s->lock);
	free(s);
}
STK_DEFINE_CLEANUP(struct stk__session *, session_free)

static int steal_fd(int *fd)
{
	int stolen = *fd;

	*fd = -1;
	return stolen;
}

int stk__session_new(int *sock, int fds[STK__FDS], uint32_t first, struct stk__session **ret,
		     struct stk_err *err)
{
	_cleanup_(session_freep) struct stk__session *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return stk_err_set(err, -ENOMEM, "session: no memory");
	s->sock = s->kick = s->wake = -1;
	s->refs = 1;
	pthread_mutex_init(&s->lock, NULL);
	if ((r = map_control(s, fds[STK__FD_CONTROL], err)) < 0 ||
	    (r = map_slots(s, fds[STK__FD_SLOTS], err)) < 0 ||
	    (r = map_seat(s, fds[STK__FD_SEAT], err)) < 0 || (r = check_files(s, err)) < 0 ||
	    (r = make_batches(s, err)) < 0)
		return r;
	init_rings(s, first);
	if (s->geometry.replicas > 1 && mprotect(s->slots, s->slots_size, PROT_READ) < 0)
		return stk_err_set(err, -errno, "slots file: cannot protect the mapping: %m");
	madvise(s->slots, s->slots_size,
		MADV_DONTDUMP); /* keeps core files small; no matter if refused */
	/* The one call that could block in next() or release() must not, whatever the daemon sent. */
	if (fcntl(fds[STK__FD_KICK], F_SETFL, O_NONBLOCK) < 0 ||
	    fcntl(fds[STK__FD_WAKE], F_SETFL, O_NONBLOCK) < 0)
		return stk_err_set(err, -errno, "wake-up descriptors: %m");
	s->sock = steal_fd(sock);
	s->kick = steal_fd(&fds[STK__FD_KICK]);
	s->wake = steal_fd(&fds[STK__FD_WAKE]);
	for (int i = 0; i < STK__FDS; i++)
		stk_closep(&fds[i]);
	s->owed_max = STK_MAX(s->geometry.nslots / 2, 1);
	s->number = s->seat->seat;
	s->live = true;
	stk__fork_watch(s);
	*ret = STK_STEAL(s);
	return 0;
}

void stk__session_ref(struct stk__session *s)
{
	/* Relaxed: whoever refs holds a reference already. */
	atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
}

void stk__session_unref(struct stk__session *s)
{
	/* Acquire-release: every use by other holders precedes the free. */
	if (atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1)
		return;
	stk__fork_forget(s);
	session_free(s);
}

void stk__session_end(struct stk__session *s)
{
	pthread_mutex_lock(&s->lock);
	s->live = false;
	stk_closep(&s->sock);
	stk_closep(&s->kick);
	stk_closep(&s->wake);
	pthread_mutex_unlock(&s->lock);
}

static void kick(int fd)
{
	static const uint64_t one = 1;
	ssize_t n = write(fd, &one, sizeof(one));

	(void)n; /* a full counter: a kick is pending already; a dead daemon needs none */
}

/* Under the lock. */
static void pay(struct stk__session *s)
{
	s->owed = 0;
	kick(s->kick);
}

/* Of several seats one tells; all do when one of them, which may be this one, waits. */
static bool is_to_tell(struct stk__session *s, uint32_t need_kick)
{
	if (!need_kick || need_kick & STK_SHM_KICK_AT_ONCE || s->eager)
		return need_kick;
	return (need_kick & STK_SHM_KICK_SEAT) == s->number + 1 && ++s->owed >= s->owed_max;
}

/*
 * Puts a slot on the release ring and kicks a daemon that ran dry: once half of its slots are free,
 * or at once when nothing is ready. A daemon that is ahead of its trainer is always dry, and a
 * trainer that has batches ready need not make a system call for each to keep it there.
 */
static void give_back(struct stk__session *s, uint32_t slot, uint32_t index)
{
	pthread_mutex_lock(&s->lock);
	if (s->live && is_to_tell(s, stk_ring_release(&s->rel, s->control, slot, index)))
		pay(s);
	pthread_mutex_unlock(&s->lock);
}

void stk__session_eager(struct stk__session *s, bool eager)
{
	pthread_mutex_lock(&s->lock);
	s->eager = eager;
	if (!eager)
		stk_ring_sate(s->seat);
	else if (s->live && s->owed)
		pay(s);
	pthread_mutex_unlock(&s->lock);
}

void stk__session_hungry(struct stk__session *s)
{
	uint32_t need_kick;

	pthread_mutex_lock(&s->lock);
	if (s->live) {
		need_kick = stk_ring_hunger(s->seat, s->control);
		if (need_kick && !(need_kick & STK_SHM_KICK_AT_ONCE))
			pay(s);
	}
	pthread_mutex_unlock(&s->lock);
}

void stk__session_skip(struct stk__session *s, uint32_t slot, uint32_t index)
{
	/* Relaxed: a flag of our own; a lent slot is given back by whoever holds it. */
	if (slot < s->geometry.nslots &&
	    !atomic_load_explicit(&batch_at(s, slot)->lent, memory_order_relaxed))
		give_back(s, slot, index);
}

/* Shapes come from two places, the schema and the descriptor: they must agree with the size. */
static int check_shapes(const struct stk__session *s, const struct stk_batch *batch,
			struct stk_err *err)
{
	for (uint32_t i = 0; i < s->schema->nfields; i++) {
		const struct stk_shm_field *f = &batch->fields[i];
		uint64_t size = s->schema->fields[i].inner_bytes;
		bool overflow = stk_mul_overflow(size, (uint64_t)f->lead[0], &size);

		if (f->nlead == 2)
			overflow |= stk_mul_overflow(size, (uint64_t)f->lead[1], &size);
		if (overflow || size != f->size)
			return stk_err_set(
				err, -EPROTO,
				"batch descriptor: slot %" PRIu32 ": field \"%s\" has %" PRIu64
				" bytes, its shape needs %" PRIu64,
				batch->desc.slot, s->schema->fields[i].name, f->size, size);
	}
	return 0;
}

static int copy_desc(struct stk__session *s, struct stk_batch *batch, uint32_t slot,
		     struct stk_err *err)
{
	const struct stk_shm_control *g = &s->geometry;
	const uint8_t *from =
		(const uint8_t *)s->control + g->desc_off + (uint64_t)slot * g->desc_size;
	struct stk_shm_desc *desc = &batch->desc;
	int r;

	memcpy(desc, from, offsetof(struct stk_shm_desc, cursor));
	memcpy(batch->fields, from + sizeof(*desc), g->nfields * sizeof(batch->fields[0]));
	r = stk_shm_desc_check(desc, batch->fields, g, err);
	if (r < 0)
		return r;
	memcpy(desc->cursor, from + offsetof(struct stk_shm_desc, cursor), desc->cursor_size);
	return check_shapes(s, batch, err);
}

int stk__session_lend(struct stk__session *s, const struct stk_shm_entry *entry, uint32_t index,
		      struct stk_batch **ret, struct stk_err *err)
{
	struct stk_batch *batch;
	int r;

	if (entry->slot >= s->geometry.nslots)
		return stk_err_set(err, -EPROTO, "publish entry: slot %" PRIu32 " of %" PRIu32,
				   entry->slot, s->geometry.nslots);
	batch = batch_at(s, entry->slot);
	/* Acquire: pairs with the release in stk_batch_release(), on whichever thread it ran. */
	if (atomic_load_explicit(&batch->lent, memory_order_acquire))
		return stk_err_set(err, -EPROTO,
				   "publish entry: slot %" PRIu32 " is still borrowed",
				   entry->slot);
	r = copy_desc(s, batch, entry->slot, err);
	if (r < 0)
		return r;
	if (batch->desc.slot != entry->slot || batch->desc.era != entry->era)
		return stk_err_set(err, -EPROTO,
				   "batch descriptor: slot %" PRIu32 " era %" PRIu32
				   ", entry says %" PRIu32 " era %" PRIu32,
				   batch->desc.slot, batch->desc.era, entry->slot, entry->era);
	batch->index = index;
	/* Relaxed: handing the batch to another thread is the caller's synchronisation. */
	atomic_store_explicit(&batch->lent, true, memory_order_relaxed);
	stk__session_ref(s);
	*ret = batch;
	return 0;
}

void stk__session_error(const struct stk__session *s, char text[STK_SHM_ERROR_SIZE])
{
	memcpy(text, (const uint8_t *)s->control + s->geometry.error_off, STK_SHM_ERROR_SIZE);
	text[STK_SHM_ERROR_SIZE - 1] = '\0';
}

void stk_batch_release(struct stk_batch *batch)
{
	struct stk__session *s;

	/* Release: pairs with the acquire in stk__session_lend(). A second release does nothing. */
	if (!batch || !atomic_exchange_explicit(&batch->lent, false, memory_order_acq_rel))
		return;
	s = batch->session;
	give_back(s, batch->desc.slot, batch->index);
	stk__session_unref(s);
}
