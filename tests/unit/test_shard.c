/* SPDX-License-Identifier: Apache-2.0 */
/* Shards: the fields and samples of sound tensors, and files that change after the opening. */
#include <errno.h>

#include "tests/unit/shard_fixture.h"

static void ragged_rows_have_the_lengths_that_were_written(void **state)
{
	const uint32_t lengths[] = {3, 0, 5, 1, 7};
	_cleanup_(stkd_shard_freep) struct stkd_shard *shard =
		opened(write_ragged(*state, "s.safetensors", lengths, 5, 100));
	struct stk_err err = {0};
	struct stkd_extent extent;
	uint32_t out[5];
	int32_t value;

	assert_int_equal(shard->count, 5);
	assert_int_equal(shard->nfields, 1);
	assert_string_equal(shard->fields[0].name, "input_ids");
	assert_true(shard->fields[0].ragged);
	assert_int_equal(shard->fields[0].dtype, STK_DTYPE_I32);
	assert_int_equal(shard->fd, -1);
	assert_int_equal(stkd_shard_lengths(shard, 0, 0, 5, out, &err), 0);
	assert_memory_equal(out, lengths, sizeof(lengths));
	assert_int_equal(stkd_shard_lengths(shard, 0, 3, 2, out, &err), 0);
	assert_memory_equal(out, lengths + 3, 8);
	assert_int_equal(shard->format->row(shard, 0, 2, &extent), 0);
	assert_int_equal(extent.count, 5);
	assert_int_equal(extent.size, 20);
	memcpy(&value, extent.data, sizeof(value));
	assert_int_equal(value, 103);
}

/* One ragged pair x with these n offsets over 4 U8 values; stated or not. */
static const char *write_pair(struct folder *f, const int64_t *offsets, size_t n, bool stated)
{
	char header[512];
	uint8_t data[256];

	memcpy(data, offsets, n * 8);
	memcpy(data + n * 8, "wxyz", 4);
	snprintf(header, sizeof(header),
		 "{%s\"x.offsets\":{\"dtype\":\"I64\",\"shape\":[%zu],\"data_offsets\":[0,%zu]},"
		 "\"x.values\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[%zu,%zu]}}",
		 stated ? "\"__metadata__\":{\"stoker\":\"ragged=values+offsets;version=1\"}," : "",
		 n, n * 8, n * 8, n * 8 + 4);
	return write_shard(f, "pair.safetensors", header, data, n * 8 + 4);
}

static void each_broken_ragged_rule_is_named_with_index_and_numbers(void **state)
{
	static const struct {
		int64_t offsets[4];
		size_t n;
		const char *wanted;
	} cases[] = {
		{{1, 2, 3, 4}, 4, "x.offsets[0] is 1, must be 0"},
		{{0, 3, 2, 4}, 4, "x.offsets[2] is 2, less than 3 before it"},
		{{0, -1, 2, 4}, 4, "x.offsets[1] is -1, less than 0"},
		{{0, 1, 2, 3}, 4, "x.offsets[3] is 3, but x.values has 4"},
		{{0, 1, 2, 5}, 4, "x.offsets[3] is 5, but x.values has 4"},
		{{0}, 1, "x.offsets[0] is 0, but x.values has 4"},
		{{0}, 0, "x.offsets has 0 entries"},
	};
	struct stkd_shard *shard = NULL;
	struct stk_err err = {0};

	for (size_t i = 0; i < STK_ARRAY_SIZE(cases); i++) {
		const char *path = write_pair(*state, cases[i].offsets, cases[i].n, true);

		assert_int_equal(stkd_shard_open(path, NULL, &shard, &err), -EBADMSG);
		assert_text(&err, cases[i].wanted);
	}
}

static void without_the_convention_only_a_sound_pair_is_ragged(void **state)
{
	const int64_t sound[] = {0, 0, 1, 4}, plain[] = {4, 3, 2, 1};
	_cleanup_(stkd_shard_freep) struct stkd_shard *a = NULL, *b = NULL;

	a = opened(write_pair(*state, sound, 4, false));
	assert_int_equal(a->nfields, 1);
	assert_true(a->fields[0].ragged);
	assert_int_equal(a->count, 3);
	b = opened(write_pair(*state, plain, 4, false));
	assert_int_equal(b->nfields, 2);
	assert_false(b->fields[0].ragged);
	assert_string_equal(b->fields[0].name, "x.offsets");
	assert_int_equal(b->count, 4);
}

static void not_a_field(void **state, const char *header, size_t size, const char *wanted)
{
	struct stkd_shard *shard = NULL;
	struct stk_err err = {0};
	uint8_t data[64] = {0};
	const char *path = write_shard(*state, "s.safetensors", header, data, size);

	assert_int_equal(stkd_shard_open(path, NULL, &shard, &err), -EBADMSG);
	assert_text(&err, wanted);
}

static void sound_tensors_that_make_no_fields_are_refused(void **state)
{
#define STATED "\"__metadata__\":{\"stoker\":\"ragged=values+offsets;version=1\"},"
	char header[256];

	not_a_field(state, tensor(header, "F32", "[]", "[0,4]"), 4,
		    "t is a scalar: a field needs a sample dimension");
	not_a_field(state, tensor(header, "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1,
		    "t has 9 dimensions, allowed are 8");
	not_a_field(state, tensor(header, "F4", "[2,1]", "[0,1]"), 1, "4 bits, not whole bytes");
	not_a_field(state, "{" U8("a", 2, 0, 2) "," U8("b", 3, 2, 5) "}", 5,
		    "field a has 2 samples, field b has 3");
	not_a_field(state, "{" STATED U8("x.values", 4, 0, 4) "}", 4, "x.values has no offsets");
	not_a_field(state, "{" STATED U8("x.offsets", 4, 0, 4) "}", 4, "x.offsets has no x.values");
	not_a_field(state, "{" STATED U8("x.offsets", 4, 0, 4) "," U8("x.values", 4, 4, 8) "}", 8,
		    "x.offsets is U8, must be I64");
	not_a_field(state, "{\"__metadata__\":{\"stoker\":\"ragged=bounds\"}}", 0, "ragged=bounds");
	not_a_field(state, "{\"__metadata__\":{\"stoker\":\"version=2\"}}", 0, "version=2");
}

static void samples_of_no_bytes_are_samples(void **state)
{
	char header[256];
	_cleanup_(stkd_shard_freep) struct stkd_shard *four = NULL, *none = NULL;
	struct stkd_extent extent;

	four = opened(write_shard(*state, "four.safetensors",
				  tensor(header, "F32", "[4,0]", "[0,0]"), NULL, 0));
	assert_int_equal(four->count, 4);
	assert_int_equal(four->format->row(four, 0, 3, &extent), 0);
	assert_int_equal(extent.size, 0);
	none = opened(write_shard(*state, "none.safetensors",
				  tensor(header, "F32", "[0,4]", "[0,0]"), NULL, 0));
	assert_int_equal(none->count, 0);
	assert_int_equal(none->fields[0].inner[0], 4);
}

static void the_metadata_says_which_fields_are_text(void **state)
{
	_cleanup_(stkd_shard_freep) struct stkd_shard *shard = opened(
		write_shard(*state, "s.safetensors",
			    "{\"__metadata__\":{\"stoker.text\":\"c,a\"}," U8("a", 2, 0, 2) "," U8(
				    "ab", 2, 2, 4) "," U8("c", 2, 4, 6) "}",
			    "aabbcc", 6));

	assert_true(shard->fields[0].text);
	assert_false(shard->fields[1].text);
	assert_true(shard->fields[2].text);
}

static void overwrite(const char *path, const void *bytes, size_t size, off_t at)
{
	_cleanup_(stk_closep) int fd = open(path, O_WRONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, bytes, size, at), size);
}

static void offsets_changed_after_open_are_an_error_not_a_wild_read(void **state)
{
	const uint32_t lengths[] = {3, 1};
	const char *path = write_ragged(*state, "s.safetensors", lengths, 2, 0);
	_cleanup_(stkd_shard_freep) struct stkd_shard *shard = opened(path);
	off_t at = (off_t)(shard->file_size - shard->payload_size) + 8; /* offset 1 of 0, 3, 4 */
	const int64_t wild[] = {5, -1, INT64_MAX, INT64_MIN};
	struct stk_err err = {0};
	struct stkd_extent extent;
	uint32_t out[2];

	for (size_t i = 0; i < STK_ARRAY_SIZE(wild); i++) {
		overwrite(path, &wild[i], 8, at);
		assert_int_equal(shard->format->row(shard, 0, 0, &extent), -EBADMSG);
		assert_int_equal(stkd_shard_lengths(shard, 0, 0, 2, out, &err), -EBADMSG);
		assert_text(&err, "row 0 of field input_ids were changed");
	}
}

static void a_shard_cut_after_open_is_an_error_with_the_byte(void **state)
{
	_cleanup_(stk_freep) uint32_t *lengths = calloc(4096, sizeof(*lengths));
	const char *path;
	_cleanup_(stkd_shard_freep) struct stkd_shard *shard = NULL;
	struct stk_err err = {0};

	assert_non_null(lengths);
	path = write_ragged(*state, "s.safetensors", lengths, 4096, 0);
	shard = opened(path);
	assert_int_equal(stkd_shard_unchanged(shard, &err), 0);
	assert_int_equal(truncate(path, 4096), 0);
	assert_int_equal(stkd_shard_lengths(shard, 0, 0, 4096, lengths, &err), -EBADMSG);
	assert_text(&err, "is gone: the file was cut");
	assert_int_equal(stkd_shard_unchanged(shard, &err), -EBADMSG);
	assert_text(&err, "has 4096 bytes, had ");
	assert_int_equal(unlink(path), 0);
	assert_int_equal(stkd_shard_unchanged(shard, &err), -EBADMSG);
	write_ragged(*state, "s.safetensors", lengths, 4096, 0);
	assert_int_equal(stkd_shard_unchanged(shard, &err), -EBADMSG);
	assert_text(&err, "was replaced");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(ragged_rows_have_the_lengths_that_were_written),
		test(each_broken_ragged_rule_is_named_with_index_and_numbers),
		test(without_the_convention_only_a_sound_pair_is_ragged),
		test(sound_tensors_that_make_no_fields_are_refused),
		test(samples_of_no_bytes_are_samples),
		test(the_metadata_says_which_fields_are_text),
		test(offsets_changed_after_open_are_an_error_not_a_wild_read),
		test(a_shard_cut_after_open_is_an_error_with_the_byte),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
