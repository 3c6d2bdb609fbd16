/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors reader: what it accepts, what it refuses and with which words. */
#include <errno.h>
#include <jansson.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#include "daemon/shard/ragged.h"
#include "tests/unit/shard_fixture.h"

/* The format's rules alone, without those of samples and fields. */
static int read_tensors(const char *path, uint64_t header_max, struct stkd_tensors **ret,
			struct stk_err *err)
{
	_cleanup_(stk_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;

	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &st), 0);
	return stkd_tensors_read(fd, (uint64_t)st.st_size, header_max, ret, err);
}

/* The file must be refused by both doors, as bad data, with these words. */
static void refused(const char *path, const char *wanted)
{
	struct stkd_tensors *tensors = NULL;
	struct stkd_shard *shard = NULL;
	struct stk_err err = {0};

	assert_int_equal(read_tensors(path, 0, &tensors, &err), -EBADMSG);
	assert_text(&err, wanted);
	assert_int_equal(stkd_shard_open(path, NULL, &shard, &err), -EBADMSG);
	assert_null(shard);
	assert_non_null(strstr(err.text, path));
}

static void refused_header(struct folder *f, const char *header, size_t size, const char *wanted)
{
	uint8_t data[64] = {0};

	assert_true(size <= sizeof(data));
	refused(write_shard(f, "bad.safetensors", header, data, size), wanted);
}

static void offsets_that_are_reversed_negative_or_past_the_end_are_refused(void **state)
{
	static const struct {
		const char *dtype, *shape, *offsets, *wanted;
	} cases[] = {
		{"U8", "[8]", "[-4,4]", "t: data_offsets[0] is -4"},
		{"U8", "[4]", "[8,4]", "t: data_offsets [8, 4] end before they begin"},
		{"U8", "[68]", "[0,68]", "cut before the end of t, data_offsets [0, 68]"},
		{"U8", "[64]", "[18446744073709551608,16]", "t: header: byte "},
		{"F4X", "[4]", "[0,4]", "t: unknown dtype F4X"},
		{"I128", "[4]", "[0,4]", "t: unknown dtype I128"},
		{"U8", "[64]", "[0]", "t: data_offsets has 1 numbers"},
		{"U8", "[64]", "[0,64,64]", "t: data_offsets has 3 numbers"},
		{"U8", "[64]", "[\"0\",\"64\"]", "t: data_offsets[0] is \"0\""},
		{"U8", "[10]", "[0,1e1]", "t: data_offsets[1] is 10.0"},
		{"U8", "[8.0]", "[0,8]", "t: shape[0] is 8.0"},
		{"U8", "[-8]", "[0,8]", "t: shape[0] is -8"},
		{"F4X", "[4]", "[4,0]", "t: data_offsets [4, 0]"}, /* before the dtype */
	};
	char header[256];

	for (size_t i = 0; i < STK_ARRAY_SIZE(cases); i++)
		refused_header(*state,
			       tensor(header, cases[i].dtype, cases[i].shape, cases[i].offsets), 64,
			       cases[i].wanted);
}

static void a_number_past_64_bits_is_named_with_what_is_allowed(void **state)
{
	char header[256];

	tensor(header, "U8", "[64]", "[18446744073709551608,16]");
	refused_header(*state, header, 64, "18446744073709551608");
	refused_header(*state, header, 64, "the largest is 9223372036854775807");
}

static void a_shape_that_does_not_fill_its_offsets_is_refused_with_both_sizes(void **state)
{
	char header[256];

	refused_header(*state, tensor(header, "F32", "[1000,1000]", "[0,4]"), 4,
		       "t: 4000000 bytes expected from shape, 4 in data_offsets");
	refused_header(*state, tensor(header, "F32", "[1]", "[0,40]"), 40,
		       "t: 4 bytes expected from shape, 40 in data_offsets");
	refused_header(*state, tensor(header, "F16", "[3]", "[0,5]"), 5,
		       "t: 6 bytes expected from shape, 5 in data_offsets");
	refused_header(*state, tensor(header, "F4", "[3]", "[0,2]"), 2, "12 bits");
	refused_header(*state, tensor(header, "U8", "[4294967296,4294967296]", "[0,8]"), 8,
		       "t: the shape overflows 64 bits");
	refused_header(*state, tensor(header, "F64", "[4611686018427387904]", "[0,8]"), 8,
		       "t: the shape overflows 64 bits");
}

static void overlaps_holes_and_trailing_bytes_are_refused_in_any_order(void **state)
{
	refused_header(*state, "{" U8("a", 4, 0, 4) "," U8("b", 4, 2, 6) "}", 8,
		       "b: data_offsets [2, 6] overlap a [0, 4]");
	refused_header(*state, "{" U8("b", 4, 2, 6) "," U8("a", 4, 0, 4) "}", 8,
		       "b: data_offsets [2, 6] overlap a [0, 4]");
	refused_header(*state, "{" U8("a", 4, 0, 4) "," U8("b", 4, 0, 4) "}", 8,
		       "b: data_offsets [0, 4] overlap a [0, 4]");
	refused_header(*state, "{" U8("a", 2, 0, 2) "," U8("b", 4, 4, 8) "}", 8,
		       "b: bytes 2 to 4 before it belong to no tensor");
	refused_header(*state, "{" U8("a", 4, 0, 4) "}", 8, "bytes after the last tensor a");
	refused_header(*state, "{" U8("a", 2, 2, 4) "}", 4, "a: bytes 0 to 2");
	refused_header(*state, "{}", 3, "bytes after the last tensor");
}

static void tensors_may_be_listed_in_another_order_than_they_lie(void **state)
{
	struct folder *f = *state;
	_cleanup_(stkd_shard_freep) struct stkd_shard *shard = NULL;
	struct stkd_extent extent;

	shard = opened(write_shard(f, "ok.safetensors",
				   "{" U8("b", 4, 4, 8) "," U8("a", 4, 0, 4) "}", "abcdefgh", 8));
	assert_int_equal(shard->count, 4);
	assert_int_equal(
		shard->format->row(shard, (uint32_t)stkd_shard_field(shard, "b"), 1, &extent), 0);
	assert_int_equal(extent.size, 1);
	assert_int_equal(*(const char *)extent.data, 'f');
}

static void a_name_given_twice_is_called_a_duplicate_key(void **state)
{
	refused_header(*state, "{" U8("k", 4, 0, 4) "," U8("k", 4, 4, 8) "}", 8, "duplicate key k");
	refused_header(*state, "{" U8("", 4, 0, 4) "," U8("", 4, 4, 8) "}", 8,
		       "duplicate key \"\"");
	refused_header(*state, "{" U8("k", 4, 0, 4) "," U8("\\u006b", 4, 0, 4) "}", 4,
		       "duplicate key k");
	refused_header(*state,
		       "{\"k\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[4],"
		       "\"data_offsets\":[0,4]}}",
		       4, "duplicate object key");
	refused_header(*state, "{\"__metadata__\":{},\"__metadata__\":{}}", 0,
		       "duplicate key __metadata__");
	refused_header(*state, "{\"__metadata__\":{\"x\":\"1\",\"y\":\"1\",\"x\":\"2\"}}", 0,
		       "duplicate key in __metadata__");
}

static void names_with_nul_and_broken_text_are_refused(void **state)
{
	refused_header(*state, "{" U8("a\\u0000b", 4, 0, 4) "}", 4, "NUL");
	refused_header(*state, "{" U8("\\ud83d", 4, 0, 4) "}", 4, "header: byte ");
	refused_header(*state, "{" U8("\xff", 4, 0, 4) "}", 4, "header: byte ");
	refused_header(*state, "{} {}", 0, "more text after");
	refused_header(*state, "\xef\xbb\xbf{}", 0, "expected a JSON object");
	refused_header(*state, "{\"a\":}", 0, "a value is missing");
	refused_header(*state, "{\"a\"", 0, "expected ':'");
	refused_header(*state, "{\"a\":1}", 0, "a: its description is not an object");
	refused_header(*state, "{\"a", 0, "header: byte ");
	refused_header(*state, "{,}", 0, "expected a name");
	refused_header(*state, "{" U8("a", 4, 0, 4) ",}", 4, "expected a name");
	refused_header(*state, "", 0, "expected a JSON object");
}

static void deep_nesting_ends_early(void **state)
{
	_cleanup_(stk_freep) char *header = calloc(1, 100100);

	assert_non_null(header);
	strcpy(header, "{\"a\":");
	memset(header + 5, '[', 100000);
	refused_header(*state, header, 0, "nested more than 128 deep");
}

static void a_value_too_large_to_be_a_description_is_not_built(void **state)
{
	_cleanup_(stk_freep) char *header = calloc(1, 4100000);
	size_t n = 0;

	assert_non_null(header);
	n += (size_t)sprintf(header, "{\"a\":[");
	for (size_t i = 0; i < 1000000; i++)
		n += (size_t)sprintf(header + n, "[],");
	sprintf(header + n, "0]}");
	refused_header(*state, header, 0, "more than 1048576 bytes");
}

static void headers_without_tensors_are_shards_without_samples(void **state)
{
	static const char *const headers[] = {
		"{}",
		"{\"__metadata__\":{}}",
		"{\"__metadata__\":{\"k\":\"v\"}}",
		"{\"__metadata__\":null}",
		" \n\t{ }\r  ",
	};

	for (size_t i = 0; i < STK_ARRAY_SIZE(headers); i++) {
		_cleanup_(stkd_shard_freep) struct stkd_shard *shard =
			opened(write_shard(*state, "ok.safetensors", headers[i], NULL, 0));

		assert_int_equal(shard->count, 0);
		assert_int_equal(shard->nfields, 0);
		assert_int_equal(shard->payload_size, 0);
	}
	refused_header(*state, "{},\"__metadata__\":{\"key\":\"value\"}}      ", 0,
		       "header: byte 2: more text after the JSON object");
	refused_header(*state, "{\"__metadata__\":{\"x\":1}}", 0,
		       "__metadata__: x is not a string");
	refused_header(*state, "{\"__metadata__\":[]}", 0, "__metadata__ is not an object");
}

static void unknown_parts_of_a_description_are_ignored(void **state)
{
	_cleanup_(stkd_shard_freep) struct stkd_shard *shard =
		opened(write_shard(*state, "ok.safetensors",
				   "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2],"
				   "\"extra\":{\"x\":[1.5,null]}}}",
				   "12", 2));

	assert_int_equal(shard->count, 2);
}

static void unaligned_values_read_right(void **state)
{
	/* 109 bytes: b begins at byte 8 + 109 + 2 of the file, which is odd. */
	static const char header[] =
		"{\"a\":{\"dtype\":\"U8\",\"shape\":[2,1],\"data_offsets\":[0,2]},"
		"\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[2,10]}}";
	const float values[2] = {1.0f, -2.0f};
	_cleanup_(stkd_shard_freep) struct stkd_shard *shard = NULL;
	uint8_t data[10] = {1, 2};

	memcpy(data + 2, values, sizeof(values));
	shard = opened(write_shard(*state, "ok.safetensors", header, data, sizeof(data)));
	for (uint64_t row = 0; row < 2; row++) {
		struct stkd_extent extent;
		float value;

		assert_int_equal(shard->format->row(shard, 1, row, &extent), 0);
		assert_int_equal(extent.size, sizeof(value));
		assert_int_equal((uintptr_t)extent.data % 2, 1);
		memcpy(&value, extent.data, sizeof(value));
		assert_true(value == values[row]);
	}
}

static long resident_kib(void)
{
	struct rusage usage;

	assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
	return usage.ru_maxrss;
}

static void a_bogus_header_length_costs_no_memory_and_no_time(void **state)
{
	static const struct {
		uint64_t length;
		size_t size; /* of the file */
		const char *wanted;
	} cases[] = {
		{1073741824, 16, "header of 1073741824 bytes, but the whole file has 16 bytes"},
		{UINT64_MAX, 16, "header of 18446744073709551615 bytes"},
		{UINT64_C(1) << 63, 16, "header of 9223372036854775808 bytes"},
		{UINT64_C(1) << 63, 7, "file has 7 bytes, a safetensors file has at least 8"},
		{9, 16, "header of 9 bytes, but the whole file has 16 bytes"},
		{0, 8, "header: byte 0: expected a JSON object"},
	};
	long before = resident_kib();
	clock_t start = clock();

	for (size_t i = 0; i < STK_ARRAY_SIZE(cases); i++) {
		uint8_t bytes[16] = "        {\"a\":1}\1";

		memcpy(bytes, &cases[i].length, 8);
		refused(write_bytes(*state, "bad.safetensors", bytes, cases[i].size),
			cases[i].wanted);
	}
	assert_true(resident_kib() - before < 1024);
	assert_true(clock() - start < CLOCKS_PER_SEC / 20);
}

static void a_header_over_the_cap_names_both_numbers_and_the_setting(void **state)
{
	struct stkd_shard_limits limits = {.header_max = 100};
	_cleanup_(stkd_tensors_freep) struct stkd_tensors *tensors = NULL;
	struct stkd_shard *shard = NULL;
	struct stk_err err = {0};
	char header[200] = "{}";
	const char *path;

	memset(header + 2, ' ', 99);
	path = write_shard(*state, "large.safetensors", header, NULL, 0);
	assert_int_equal(stkd_shard_open(path, &limits, &shard, &err), -EBADMSG);
	assert_text(&err, "header of 101 bytes, allowed are 100; the setting header_max");
	assert_int_equal(read_tensors(path, 101, &tensors, &err), 0);
}

static void a_header_of_many_tensors_loads_when_the_cap_allows(void **state)
{
	enum { TENSORS = 50000 };
	struct stkd_shard_limits limits = {.header_max = (uint64_t)TENSORS * 100};
	_cleanup_(stkd_shard_freep) struct stkd_shard *shard = NULL;
	_cleanup_(stk_freep) char *header = malloc(TENSORS * 100);
	_cleanup_(stk_freep) uint8_t *data = calloc(1, TENSORS);
	struct stk_err err = {0};
	size_t n = 0;

	assert_non_null(header);
	assert_non_null(data);
	for (unsigned i = 0; i < TENSORS; i++)
		n += (size_t)sprintf(header + n,
				     "%c\"s%07u\":{\"dtype\":\"U8\",\"shape\":[1],"
				     "\"data_offsets\":[%u,%u]}",
				     i ? ',' : '{', i, i, i + 1);
	strcpy(header + n, "}");
	write_shard(*state, "many.safetensors", header, data, TENSORS);
	assert_int_equal(stkd_shard_open(((struct folder *)*state)->file, &limits, &shard, &err),
			 0);
	assert_int_equal(shard->nfields, TENSORS);
	assert_int_equal(stkd_shard_field(shard, "s0049999"), 49999);
	assert_int_equal(stkd_shard_field(shard, "s0050000"), -1);
}

static void a_file_of_another_type_is_named(void **state)
{
	static const struct {
		const char *bytes;
		size_t size;
		const char *wanted;
	} cases[] = {
#define CASE(bytes, wanted) {bytes, sizeof(bytes) - 1, wanted}
		CASE("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n",
		     "git-lfs pointer"),
		CASE("PK\x03\x04\x14\0\0\0\0\0\0\0\0\0\0\0", "zip archive"),
		CASE("<!DOCTYPE html>\n<html>", "HTML page"),
		CASE("\x1f\x8b\x08\0\0\0\0\0\0\x03", "gzip file"),
		CASE("\x28\xb5\x2f\xfd\x24\x0b\x59\0\0abc", "zstd frame"),
		CASE("\x93NUMPY\x01\0v\0{'descr'", "NumPy .npy array"),
		CASE("{\"weight_map\": {}}", "JSON text"),
		CASE("ARROW1\0\0\0\0\0\0", "Arrow file"),
		CASE("404: Not Found", "plain text"),
#undef CASE
	};

	for (size_t i = 0; i < STK_ARRAY_SIZE(cases); i++) {
		const char *path =
			write_bytes(*state, "a.safetensors", cases[i].bytes, cases[i].size);
		struct stkd_shard *shard = NULL;
		struct stk_err err = {0};

		assert_int_equal(stkd_shard_open(path, NULL, &shard, &err), -EBADMSG);
		assert_text(&err, "wrong file type: ");
		assert_text(&err, cases[i].wanted);
		assert_text(&err, path);
	}
}

static void what_is_not_a_file_with_bytes_is_refused_without_waiting(void **state)
{
	struct folder *f = *state;
	struct stkd_shard *shard = NULL;
	struct stk_err err = {0};
	const char *path = write_bytes(f, "empty.safetensors", "", 0);

	assert_int_equal(stkd_shard_open(path, NULL, &shard, &err), -EBADMSG);
	assert_text(&err, "empty file");
	assert_int_equal(stkd_shard_open(f->path, NULL, &shard, &err), -EINVAL);
	assert_text(&err, "not a regular file but a directory");
	assert_int_equal(mkfifo(folder_path(f, "fifo"), 0600), 0);
	assert_int_equal(stkd_shard_open(f->file, NULL, &shard, &err), -EINVAL);
	assert_int_equal(stkd_shard_open(folder_path(f, "none"), NULL, &shard, &err), -ENOENT);
}

static void a_cut_or_grown_file_is_refused_with_both_sizes_and_left_alone(void **state)
{
	const uint32_t lengths[] = {3, 0, 5, 1, 7};
	const char *path = write_ragged(*state, "s.safetensors", lengths, 5, 100);
	struct stat st, after;
	char wanted[100];

	assert_int_equal(stat(path, &st), 0);
	for (int i = 0; i < 3; i++) {
		off_t sizes[] = {st.st_size - 1, st.st_size - 40, st.st_size + 1};

		assert_int_equal(truncate(path, sizes[i]), 0);
		assert_int_equal(stat(path, &st), 0);
		snprintf(wanted, sizeof(wanted), "bytes, file has %jd", (intmax_t)sizes[i]);
		refused(path, wanted);
		assert_int_equal(stat(path, &after), 0);
		assert_int_equal(after.st_mtim.tv_nsec, st.st_mtim.tv_nsec);
		assert_int_equal(after.st_size, st.st_size);
		/* Whole again for the next cut. */
		path = write_ragged(*state, "s.safetensors", lengths, 5, 100);
		assert_int_equal(stat(path, &st), 0);
	}
	assert_int_equal(truncate(path, st.st_size / 3), 0);
	refused(path, "but the whole file has");
}

/* Samples of the reference: our verdict is its own, but for duplicates and NUL in names. */
static void check_sample(const char *path, const char *verdict)
{
	static const char *const stricter[] = {"dup_last_wins", "dup_meta_key", "dup_same",
					       "nul_in_name"};
	_cleanup_(stkd_tensors_freep) struct stkd_tensors *tensors = NULL;
	struct stk_err err = {0};
	bool accept = !strcmp(verdict, "accept");
	int r;

	for (size_t i = 0; i < STK_ARRAY_SIZE(stricter); i++)
		accept = accept && !strstr(path, stricter[i]);
	r = read_tensors(path, 0, &tensors, &err);
	if (r != (accept ? 0 : -EBADMSG)) {
		print_error("%s: the reference says %s; we say %d %s\n", path, verdict, r,
			    err.text);
		fail();
	}
}

static void the_reference_readers_verdicts_hold(void **state)
{
	const char *folder = getenv("STOKER_SAMPLES");
	char path[512];
	const char *key;
	json_t *all, *entry;
	unsigned checked = 0;

	(void)state;
	if (!folder)
		folder = STK_SAMPLES;
	snprintf(path, sizeof(path), "%s/expected.json", folder);
	if (access(path, R_OK) < 0) {
		print_message("no samples: %s is not there\n", path);
		skip();
	}
	/* Some numbers of other formats in it pass 64 bits. */
	all = json_load_file(path, JSON_DECODE_INT_AS_REAL, NULL);
	assert_non_null(all);
	json_object_foreach (all, key, entry) {
		const char *verdict =
			json_string_value(json_object_get(entry, "reference_reader_verdict"));

		if (strncmp(key, "safetensors/", 12))
			continue;
		snprintf(path, sizeof(path), "%s/%s", folder, key);
		check_sample(path, verdict ? verdict : "accept");
		checked++;
	}
	json_decref(all);
	assert_true(checked > 40);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(offsets_that_are_reversed_negative_or_past_the_end_are_refused),
		test(a_number_past_64_bits_is_named_with_what_is_allowed),
		test(a_shape_that_does_not_fill_its_offsets_is_refused_with_both_sizes),
		test(overlaps_holes_and_trailing_bytes_are_refused_in_any_order),
		test(tensors_may_be_listed_in_another_order_than_they_lie),
		test(a_name_given_twice_is_called_a_duplicate_key),
		test(names_with_nul_and_broken_text_are_refused),
		test(deep_nesting_ends_early),
		test(a_value_too_large_to_be_a_description_is_not_built),
		test(headers_without_tensors_are_shards_without_samples),
		test(unknown_parts_of_a_description_are_ignored),
		test(unaligned_values_read_right),
		test(a_bogus_header_length_costs_no_memory_and_no_time),
		test(a_header_over_the_cap_names_both_numbers_and_the_setting),
		test(a_header_of_many_tensors_loads_when_the_cap_allows),
		test(a_file_of_another_type_is_named),
		test(what_is_not_a_file_with_bytes_is_refused_without_waiting),
		test(a_cut_or_grown_file_is_refused_with_both_sizes_and_left_alone),
		test(the_reference_readers_verdicts_hold),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
