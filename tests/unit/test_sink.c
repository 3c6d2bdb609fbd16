/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/stoker/sink.h"

#define PIECE (4u << 20)

struct fixture {
	char dir[64];
	int dirfd;
	struct sink sink;
	struct stk_err err;
	uint8_t *bytes; /* 3 pieces, no two alike */
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	snprintf(f->dir, sizeof(f->dir), "/tmp/stoker-sink-XXXXXX");
	assert_non_null(mkdtemp(f->dir));
	f->dirfd = open(f->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_return_code(f->dirfd, errno);
	f->bytes = malloc(3 * PIECE);
	for (uint32_t i = 0; i < 3 * PIECE / 4; i++)
		memcpy(f->bytes + 4 * (size_t)i, &i, 4);
	assert_int_equal(sink_open(&f->sink, f->dirfd, f->dir, "new", -1, &f->err), 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	sink_deinit(&f->sink);
	unlinkat(f->dirfd, "new", 0);
	close(f->dirfd);
	rmdir(f->dir);
	free(f->bytes);
	free(f);
	return 0;
}

static uint64_t size_of(struct fixture *f)
{
	struct stat st;

	assert_return_code(fstatat(f->dirfd, "new", &st, 0), errno);
	return (uint64_t)st.st_size;
}

static void write_some(struct fixture *f, size_t at, size_t size)
{
	assert_int_equal(sink_write(&f->sink, f->bytes + at, size, &f->err), 0);
}

static void only_whole_pieces_are_written_before_the_end(void **state)
{
	struct fixture *f = *state;

	write_some(f, 0, 9);
	assert_int_equal(size_of(f), 0);
	write_some(f, 9, PIECE - 10);
	assert_int_equal(size_of(f), 0);
	write_some(f, PIECE - 1, 1);
	assert_int_equal(size_of(f), PIECE);
	write_some(f, PIECE, 2 * PIECE - 1);
	assert_int_equal(size_of(f), 2 * PIECE);
}

static void what_arrives_and_its_hash_do_not_depend_on_how_it_was_given(void **state)
{
	struct fixture *f = *state;
	size_t size = 2 * PIECE + 12345, at = 0, n = 1;
	uint8_t *back = malloc(size);
	struct stk_hash hash;
	XXH128_canonical_t canonical;
	int fd;

	for (; at < size; at += n, n = STK_MIN(3 * n + 1, size - at))
		write_some(f, at, n);
	assert_int_equal(f->sink.bytes, size);
	assert_int_equal(sink_finish(&f->sink, &hash, &f->err), 0);
	assert_int_equal(size_of(f), size);
	fd = openat(f->dirfd, "new", O_RDONLY | O_CLOEXEC);
	assert_int_equal(read(fd, back, size), size);
	close(fd);
	assert_memory_equal(back, f->bytes, size);
	XXH128_canonicalFromHash(&canonical, XXH3_128bits(f->bytes, size));
	assert_memory_equal(hash.bytes, canonical.digest, sizeof(hash.bytes));
	free(back);
}

/* Bytes that were kept back are missed no less than those of a large write. */
static void a_full_disk_is_told_at_the_end_at_the_latest(void **state)
{
	struct fixture *f = *state;
	struct rlimit before, little = {.rlim_cur = 100};
	struct stk_hash hash;
	int r;

	assert_return_code(getrlimit(RLIMIT_FSIZE, &before), errno);
	little.rlim_max = before.rlim_max;
	signal(SIGXFSZ, SIG_IGN);
	write_some(f, 0, 1000);
	assert_return_code(setrlimit(RLIMIT_FSIZE, &little), errno);
	r = sink_finish(&f->sink, &hash, &f->err);
	assert_return_code(setrlimit(RLIMIT_FSIZE, &before), errno);
	assert_int_equal(r, -EFBIG);
	assert_non_null(strstr(f->err.text, "/new: File too large"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(only_whole_pieces_are_written_before_the_end, setup,
						teardown),
		cmocka_unit_test_setup_teardown(
			what_arrives_and_its_hash_do_not_depend_on_how_it_was_given, setup,
			teardown),
		cmocka_unit_test_setup_teardown(a_full_disk_is_told_at_the_end_at_the_latest, setup,
						teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
