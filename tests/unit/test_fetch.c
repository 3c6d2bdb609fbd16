/* SPDX-License-Identifier: Apache-2.0 */
/* Fetch: extents of rows, and what happens when a shard changes under them. */
#include "shardfile.h"

#include <errno.h>

#include "daemon/shard/guard.h"
#include "daemon/storage/fetch.h"

static const uint16_t only_field[] = {0};

static struct stkd_dataset *opened(const char *path)
{
	struct stkd_dataset *dataset = NULL;
	struct stk_err err = {0};

	if (stkd_dataset_open(path, NULL, NULL, NULL, &dataset, &err) < 0) {
		print_error("%s\n", err.text);
		fail();
	}
	return dataset;
}

static struct stkd_want wanted(const uint64_t *ids, uint32_t n)
{
	return (struct stkd_want){.ids = ids, .nrows = n, .fields = only_field, .nfields = 1};
}

static void rows_come_in_the_order_asked_for_with_their_bytes(void **state)
{
	static const uint32_t a[] = {3, 0, 5}, b[] = {1, 7};
	static const uint64_t ids[] = {4, 0, 1, 4, 2, 3};
	static const uint32_t counts[] = {7, 3, 0, 7, 5, 1};
	static const int32_t firsts[] = {51, 10, 0, 51, 13, 50};
	_cleanup_(stkd_dataset_freep) struct stkd_dataset *dataset = NULL;
	const struct stkd_want want = wanted(ids, 6);
	struct folder *f = *state;
	struct stkd_extent out[6];
	struct stk_err err = {0};

	write_ragged(f, "a.safetensors", a, 3, 10);
	write_ragged(f, "b.safetensors", b, 2, 50);
	dataset = opened(f->path);
	assert_int_equal(stkd_fetch(dataset, &want, out, &err), 0);
	for (size_t i = 0; i < 6; i++) {
		assert_int_equal(out[i].count, counts[i]);
		assert_int_equal(out[i].size, counts[i] * 4);
		if (counts[i])
			assert_memory_equal(out[i].data, &firsts[i], 4);
	}
	assert_int_equal(stkd_fetch_done(dataset, &want, &err), 0);
}

static void a_sample_that_does_not_exist_is_refused(void **state)
{
	static const uint32_t a[] = {3};
	static const uint64_t ids[] = {1};
	const struct stkd_want want = wanted(ids, 1);
	_cleanup_(stkd_dataset_freep) struct stkd_dataset *dataset =
		opened(write_ragged(*state, "a.safetensors", a, 1, 0));
	struct stkd_extent out;
	struct stk_err err = {0};

	assert_int_equal(stkd_fetch(dataset, &want, &out, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "sample 1 of 1"));
}

static void changed_offsets_are_refused_with_shard_sample_and_byte(void **state)
{
	static const uint32_t a[] = {3, 2};
	static const uint64_t ids[] = {0, 1};
	const struct stkd_want want = wanted(ids, 2);
	const char *path = write_ragged(*state, "a.safetensors", a, 2, 0);
	_cleanup_(stkd_dataset_freep) struct stkd_dataset *dataset = opened(path);
	const struct stkd_shard *shard = dataset->shards[0];
	uint64_t start = shard->file_size - shard->payload_size;
	_cleanup_(stk_closep) int fd = open(path, O_WRONLY | O_CLOEXEC);
	const int64_t wild = 6;
	struct stkd_extent out[2];
	struct stk_err err = {0};
	char place[64];

	assert_int_equal(pwrite(fd, &wild, 8, (off_t)start + 16), 8);
	assert_int_equal(stkd_fetch(dataset, &want, out, &err), -EBADMSG);
	snprintf(place, sizeof(place), "byte %" PRIu64 ", sample 1 (row 1)", start + 8);
	assert_non_null(strstr(err.text, place));
	assert_non_null(strstr(err.text, path));
}

struct job {
	const struct stkd_dataset *dataset;
	const struct stkd_want *want;
	struct stkd_extent out;
	struct stk_err err;
	uint8_t bytes[64];
};

static int fetch_and_copy(void *arg)
{
	struct job *job = arg;
	int r = stkd_fetch(job->dataset, job->want, &job->out, &job->err);

	if (r < 0)
		return r;
	memcpy(job->bytes, (const uint8_t *)job->out.data + job->out.size - 64, 64);
	return 0;
}

static void a_shard_cut_after_open_faults_into_an_error(void **state)
{
	static const uint32_t a[] = {5000};
	static const uint64_t ids[] = {0};
	const struct stkd_want want = wanted(ids, 1);
	const char *path = write_ragged(*state, "a.safetensors", a, 1, 0);
	_cleanup_(stkd_dataset_freep) struct stkd_dataset *dataset = opened(path);
	struct job job = {.dataset = dataset, .want = &want};
	const uint8_t *map = dataset->shards[0]->map;
	const void *address = NULL;

	assert_int_equal(stkd_guard_install(), 0);
	assert_int_equal(stkd_guard_run(fetch_and_copy, &job, &address), 0);
	assert_int_equal(truncate(path, 4096), 0);
	assert_int_equal(stkd_guard_run(fetch_and_copy, &job, &address), -EFAULT);
	assert_true((const uint8_t *)address >= map + 4096);
	assert_true((const uint8_t *)address < map + dataset->shards[0]->file_size);
}

static void a_cut_inside_the_last_page_is_caught_after_the_copy(void **state)
{
	static const uint32_t a[] = {100};
	static const uint64_t ids[] = {0};
	const struct stkd_want want = wanted(ids, 1);
	const char *path = write_ragged(*state, "a.safetensors", a, 1, 1);
	_cleanup_(stkd_dataset_freep) struct stkd_dataset *dataset = opened(path);
	struct job job = {.dataset = dataset, .want = &want};
	struct stk_err err = {0};
	char both[64];

	assert_int_equal(stkd_guard_install(), 0);
	assert_int_equal(truncate(path, (off_t)dataset->shards[0]->file_size - 8), 0);
	/* No signal: the page is there, and what was cut off it reads as zeros. */
	assert_int_equal(stkd_guard_run(fetch_and_copy, &job, NULL), 0);
	assert_memory_equal(job.bytes + 56, "\0\0\0\0\0\0\0\0", 8);
	assert_int_equal(stkd_fetch_done(dataset, &want, &err), -EBADMSG);
	snprintf(both, sizeof(both), "has %" PRIu64 " bytes, had %" PRIu64 " at open",
		 dataset->shards[0]->file_size - 8, dataset->shards[0]->file_size);
	assert_non_null(strstr(err.text, both));
}

static void a_change_is_seen_only_by_rows_of_that_shard(void **state)
{
	static const uint32_t a[] = {3, 4};
	static const uint64_t first[] = {0, 1}, both[] = {0, 1, 2};
	const struct stkd_want untouched = wanted(first, 2), touched = wanted(both, 3);
	_cleanup_(stkd_dataset_freep) struct stkd_dataset *dataset = NULL;
	struct folder *f = *state;
	struct stk_err err = {0};

	write_ragged(f, "a.safetensors", a, 2, 0);
	write_ragged(f, "b.safetensors", a, 2, 0);
	dataset = opened(f->path);
	assert_int_equal(unlink(folder_path(f, "b.safetensors")), 0);
	write_ragged(f, "b.safetensors", a, 2, 0);
	assert_int_equal(stkd_fetch_done(dataset, &untouched, &err), 0);
	assert_int_equal(stkd_fetch_done(dataset, &touched, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "b.safetensors: was replaced"));
}

#define test(f) cmocka_unit_test_setup_teardown(f, folder_setup, folder_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(rows_come_in_the_order_asked_for_with_their_bytes),
		test(a_sample_that_does_not_exist_is_refused),
		test(changed_offsets_are_refused_with_shard_sample_and_byte),
		test(a_shard_cut_after_open_faults_into_an_error),
		test(a_cut_inside_the_last_page_is_caught_after_the_copy),
		test(a_change_is_seen_only_by_rows_of_that_shard),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
