/* SPDX-License-Identifier: Apache-2.0 */
/* A client of the made-up daemon: opened by the set-up, or by the test itself. One thread. */
#ifndef CLIENT_FIXTURE_H
#define CLIENT_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "client/stoker.h"
#include "tests/unit/fake_daemon.h"

struct fixture {
	struct fake_daemon daemon;
	struct stk_client_opts opts;
	struct stk_client *client;
};

static inline void open_client(struct fixture *f)
{
	char error[1024] = "";

	if (stk_client_open(&f->opts, &f->client, error, sizeof(error)) < 0)
		fail_msg("%s", error);
}

static inline int set_up_closed(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	fake_start(&f->daemon);
	f->opts = (struct stk_client_opts){.size = sizeof(f->opts),
					   .stream = "fake",
					   .socket = f->daemon.socket,
					   .attach_timeout_ms = 2000};
	*state = f;
	return 0;
}

static inline int set_up(void **state)
{
	set_up_closed(state);
	open_client(*state);
	return 0;
}

static inline int tear_down(void **state)
{
	struct fixture *f = *state;

	stk_client_close(f->client);
	fake_stop(&f->daemon);
	free(f);
	return 0;
}

static inline struct stk_batch *next_batch(struct fixture *f)
{
	struct stk_batch *batch = NULL;
	int r = stk_client_next(f->client, 2000, &batch);

	if (r)
		fail_msg("next: %d: %s", r, stk_client_error(f->client));
	return batch;
}

static inline uint64_t step_of(const struct stk_batch *batch)
{
	struct stk_batch_info info = {.size = sizeof(info)};

	assert_int_equal(stk_batch_info(batch, &info), 0);
	return info.step;
}

#define TEST(f)   cmocka_unit_test_setup_teardown(f, set_up, tear_down)
#define CLOSED(f) cmocka_unit_test_setup_teardown(f, set_up_closed, tear_down)

#endif
