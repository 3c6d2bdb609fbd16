/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What fork() means for clients: the child may read batches it inherited and close its copies of
 * clients, but the seat is the parent's. Owns the list of all sessions of the process. The handlers
 * run on the forking thread.
 */
#include "client/session.h"

#include <sys/mman.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stk__session *sessions;
static _Atomic unsigned generation;

static void before(void)
{
	pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
	pthread_mutex_unlock(&lock);
}

/*
 * Only this thread exists now. Mutexes may have been held by threads that do not: start them anew.
 * Closing our copies of the descriptors lets the daemon see the parent's end when it comes.
 */
static void in_child(void)
{
	pthread_mutex_init(&lock, NULL);
	/* Relaxed: single-threaded here. */
	atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed);
	for (struct stk__session *s = sessions; s; s = s->next) {
		pthread_mutex_init(&s->lock, NULL);
		s->live = false;
		/* What the child writes must not reach the parent's batches. */
		mprotect(s->slots, s->slots_size, PROT_READ);
		s->pin = NULL; /* CUDA is the parent's alone */
		stk_closep(&s->sock);
		stk_closep(&s->kick);
		stk_closep(&s->wake);
	}
}

static void register_handlers(void)
{
	pthread_atfork(before, in_parent, in_child);
}

void stk__fork_watch(struct stk__session *s)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, register_handlers);
	pthread_mutex_lock(&lock);
	s->next = sessions;
	s->link = &sessions;
	if (sessions)
		sessions->link = &s->next;
	sessions = s;
	pthread_mutex_unlock(&lock);
}

void stk__fork_forget(struct stk__session *s)
{
	pthread_mutex_lock(&lock);
	*s->link = s->next;
	if (s->next)
		s->next->link = s->link;
	pthread_mutex_unlock(&lock);
}

unsigned stk__fork_generation(void)
{
	/* Relaxed: changes only in a child, before any of its threads starts. */
	return atomic_load_explicit(&generation, memory_order_relaxed);
}
