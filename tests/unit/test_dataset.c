/* SPDX-License-Identifier: Apache-2.0 */
/* Datasets: which shards a path means, how samples are numbered, what is refused. */
#include "shardfile.h"

#include <dirent.h>
#include <errno.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "daemon/shard/dataset.h"

static void assert_text(const struct stk_err *err, const char *wanted)
{
	if (strstr(err->text, wanted))
		return;
	print_error("error text: %s\nwanted in it: %s\n", err->text, wanted);
	fail();
}

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

static void refused(const char *path, const char *length, int code, const char *wanted)
{
	struct stkd_dataset *dataset = NULL;
	struct stk_err err = {0};

	assert_int_equal(stkd_dataset_open(path, length, NULL, NULL, &dataset, &err), code);
	assert_null(dataset);
	assert_int_equal(err.code, code);
	assert_text(&err, wanted);
}

static const uint32_t lengths_a[] = {3, 0, 5}, lengths_b[] = {1, 7};

/* Shards "b" with 2 samples, an empty one, and "a" with 3: written against the name order. */
static void write_three(struct folder *f)
{
	write_ragged(f, "b.safetensors", lengths_b, 2, 50);
	write_shard(f, "aa.safetensors", "{}", NULL, 0);
	write_ragged(f, "a.safetensors", lengths_a, 3, 10);
	write_bytes(f, "README.md", "text", 4);
	write_bytes(f, ".hidden.safetensors", "text", 4);
}

static void a_folder_is_its_shards_in_name_order(void **state)
{
	static const uint32_t all[] = {3, 0, 5, 1, 7};
	_cleanup_(stkd_dataset_freep) struct stkd_dataset *dataset = NULL;
	struct folder *f = *state;

	write_three(f);
	dataset = opened(f->path);
	assert_int_equal(dataset->nshards, 3);
	assert_int_equal(dataset->count, 5);
	assert_memory_equal(dataset->lengths, all, sizeof(all));
	assert_int_equal(dataset->nfields, 1);
	assert_int_equal(dataset->length_field, 0);
	assert_true(dataset->aligned[0]);
	assert_int_equal(dataset->longest[0], 7);
	assert_int_equal(stkd_dataset_field(dataset, "input_ids"), 0);
	assert_int_equal(stkd_dataset_field(dataset, "labels"), -1);
}

static void every_sample_is_found_in_its_shard_and_row(void **state)
{
	static const size_t shards[] = {0, 0, 0, 2, 2}, rows[] = {0, 1, 2, 0, 1};
	_cleanup_(stkd_dataset_freep) struct stkd_dataset *dataset = NULL;
	struct folder *f = *state;

	write_three(f);
	dataset = opened(f->path);
	for (uint64_t i = 0; i < 5; i++) {
		uint64_t row;
		size_t shard;

		stkd_dataset_locate(dataset, i, &shard, &row);
		assert_int_equal(shard, shards[i]);
		assert_int_equal(row, rows[i]);
	}
}

static void empty_shards_at_both_ends_take_no_sample(void **state)
{
	_cleanup_(stkd_dataset_freep) struct stkd_dataset *dataset = NULL;
	struct folder *f = *state;
	uint64_t row;
	size_t shard;

	write_shard(f, "0.safetensors", "{}", NULL, 0);
	write_shard(f, "1.safetensors", "{}", NULL, 0);
	write_ragged(f, "2.safetensors", lengths_b, 2, 0);
	write_shard(f, "3.safetensors", "{}", NULL, 0);
	dataset = opened(f->path);
	for (uint64_t i = 0; i < 2; i++) {
		stkd_dataset_locate(dataset, i, &shard, &row);
		assert_int_equal(shard, 2);
		assert_int_equal(row, i);
	}
}

static void a_glob_and_a_single_file_name_shards_too(void **state)
{
	struct folder *f = *state;
	_cleanup_(stkd_dataset_freep) struct stkd_dataset *glob = NULL, *one = NULL;

	write_three(f);
	glob = opened(folder_path(f, "a*.safetensors"));
	assert_int_equal(glob->nshards, 2);
	assert_int_equal(glob->count, 3);
	one = opened(folder_path(f, "b.safetensors"));
	assert_int_equal(one->nshards, 1);
	assert_int_equal(one->count, 2);
	refused(folder_path(f, "c*.safetensors"), NULL, -ENOENT, "nothing matches");
	refused(folder_path(f, "c.safetensors"), NULL, -ENOENT, "No such file");
}

static void a_folder_without_shards_or_samples_is_refused(void **state)
{
	struct folder *f = *state;

	refused(f->path, NULL, -ENOENT, "no shards");
	write_shard(f, "0.safetensors", "{}", NULL, 0);
	write_shard(f, "1.safetensors", "{\"__metadata__\":{}}", NULL, 0);
	refused(f->path, NULL, -EINVAL, "no samples in 2 shards");
}

static void all_bad_shards_are_listed_in_one_error(void **state)
{
	struct folder *f = *state;

	write_three(f);
	write_bytes(f, "x1.safetensors", "PK\x03\x04PK\x03\x04PK", 10);
	write_bytes(f, "x2.safetensors", "", 0);
	refused(f->path, NULL, -EBADMSG, "2 of 5 shards are bad: ");
	refused(f->path, NULL, -EBADMSG, "x1.safetensors: wrong file type: zip archive");
	refused(f->path, NULL, -EBADMSG, "x2.safetensors: empty file");
	for (int i = 0; i < 30; i++) {
		char name[32];

		snprintf(name, sizeof(name), "y%02d.safetensors", i);
		write_bytes(f, name, "", 0);
	}
	refused(f->path, NULL, -EBADMSG, "32 of 35 shards are bad: ");
	refused(f->path, NULL, -EBADMSG, "; and ");
}

static void shards_that_disagree_in_fields_are_refused_with_both(void **state)
{
	static const char other[] = "{\"__metadata__\":{\"stoker\":\"ragged=values+offsets\"},"
				    "\"input_ids.offsets\":{\"dtype\":\"I64\",\"shape\":[2],"
				    "\"data_offsets\":[0,16]},"
				    "\"input_ids.values\":{\"dtype\":\"U16\",\"shape\":[2],"
				    "\"data_offsets\":[16,20]}}";
	const int64_t data[3] = {0, 2, 0};
	struct folder *f = *state;

	write_three(f);
	write_shard(f, "c.safetensors", other, data, 20);
	refused(f->path, NULL, -EINVAL, "has input_ids: I32 ragged");
	refused(f->path, NULL, -EINVAL, "has input_ids: U16 ragged");
}

/* Two samples: ragged fields a (lengths 2, 1), b (2, 1) and c (1, 2), and fixed d. */
static const char *write_fields(struct folder *f, const char *name)
{
	static const char header[] =
		"{\"__metadata__\":{\"stoker\":\"ragged=values+offsets;version=1\"},"
		"\"a.offsets\":{\"dtype\":\"I64\",\"shape\":[3],\"data_offsets\":[0,24]},"
		"\"b.offsets\":{\"dtype\":\"I64\",\"shape\":[3],\"data_offsets\":[24,48]},"
		"\"c.offsets\":{\"dtype\":\"I64\",\"shape\":[3],\"data_offsets\":[48,72]},"
		"\"a.values\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[72,75]},"
		"\"b.values\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[75,78]},"
		"\"c.values\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[78,81]},"
		"\"d\":{\"dtype\":\"U8\",\"shape\":[2,3],\"data_offsets\":[81,87]}}";
	struct {
		int64_t offsets[9];
		char values[16];
	} data = {{0, 2, 3, 0, 2, 3, 0, 1, 3}, "AAABBBCCCdddddd"};

	return write_shard(f, name, header, &data, 87);
}

static void the_length_field_is_chosen_or_the_choices_are_listed(void **state)
{
	_cleanup_(stkd_dataset_freep) struct stkd_dataset *dataset = NULL;
	struct folder *f = *state;
	const char *path = write_fields(f, "s.safetensors");
	struct stk_err err = {0};

	refused(path, NULL, -EINVAL, "no length field is given; ragged fields: a, b, c");
	refused(path, "x", -EINVAL, "length field x is missing; ragged fields: a, b, c");
	refused(path, "d", -EINVAL, "length field d is not ragged; ragged fields: a, b, c");
	assert_int_equal(stkd_dataset_open(path, "c", NULL, NULL, &dataset, &err), 0);
	assert_int_equal(dataset->length_field, 2);
	assert_int_equal(dataset->lengths[0], 1);
	assert_int_equal(dataset->lengths[1], 2);
}

static void aligned_says_which_fields_share_every_length(void **state)
{
	_cleanup_(stkd_dataset_freep) struct stkd_dataset *dataset = NULL;
	const char *path = write_fields(*state, "s.safetensors");
	struct stk_err err = {0};

	assert_int_equal(stkd_dataset_open(path, "a", NULL, NULL, &dataset, &err), 0);
	assert_true(dataset->aligned[0]);
	assert_true(dataset->aligned[1]);
	assert_false(dataset->aligned[2]);
	assert_false(dataset->aligned[3]);
	assert_int_equal(dataset->longest[0], 2);
	assert_int_equal(dataset->longest[2], 2);
	assert_int_equal(dataset->longest[3], 0);
}

static void tools_may_look_at_what_has_no_length(void **state)
{
	_cleanup_(stkd_dataset_freep) struct stkd_dataset *fixed = NULL, *open_choice = NULL;
	struct folder *f = *state;
	struct stk_err err = {0};
	const char *path = write_shard(
		f, "fixed.safetensors",
		"{\"x\":{\"dtype\":\"U8\",\"shape\":[4,2],\"data_offsets\":[0,8]}}", "abcdefgh", 8);

	refused(path, NULL, -EINVAL, "no field is ragged");
	assert_int_equal(stkd_dataset_open_any(path, NULL, NULL, NULL, &fixed, &err), 0);
	assert_int_equal(fixed->length_field, UINT32_MAX);
	assert_null(fixed->lengths);
	assert_int_equal(fixed->count, 4);
	path = write_fields(f, "s.safetensors");
	assert_int_equal(stkd_dataset_open_any(path, NULL, NULL, NULL, &open_choice, &err), 0);
	assert_int_equal(open_choice->length_field, 0);
}

static void more_fields_than_a_dataset_has_room_for_are_refused(void **state)
{
	uint8_t data[STKD_SHARD_FIELDS_MAX + 1] = {0};
	char header[8192] = "{";
	size_t n = 1;

	for (int i = 0; i <= STKD_SHARD_FIELDS_MAX; i++)
		n += (size_t)sprintf(
			header + n,
			"%s\"f%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
			i ? "," : "", i, i, i + 1);
	strcpy(header + n, "}");
	refused(write_shard(*state, "s.safetensors", header, data, sizeof(data)), NULL, -EINVAL,
		"65 fields, allowed are 64");
}

static struct stk_hash fingerprint(const char *path)
{
	_cleanup_(stkd_dataset_freep) struct stkd_dataset *dataset = opened(path);

	return dataset->fingerprint;
}

static void the_fingerprint_follows_the_data_and_never_the_place(void **state)
{
	struct folder *f = *state;
	struct stk_hash first, moved, grown, split;

	write_ragged(f, "a.safetensors", lengths_a, 3, 10);
	first = fingerprint(f->file);
	write_ragged(f, "other.safetensors", lengths_a, 3, 10);
	moved = fingerprint(f->file);
	assert_memory_equal(&first, &moved, sizeof(first));
	write_ragged(f, "a.safetensors", (const uint32_t[]){3, 1, 4}, 3, 10);
	grown = fingerprint(f->file);
	assert_memory_not_equal(&first, &grown, sizeof(first));
	write_ragged(f, "a.safetensors", lengths_a, 2, 10);
	write_ragged(f, "other.safetensors", lengths_a + 2, 1, 10);
	split = fingerprint(f->path);
	assert_memory_not_equal(&first, &split, sizeof(first));
}

static void the_fingerprint_is_the_same_on_every_machine_and_release(void **state)
{
	struct stk_hash hash;
	char text[33];

	write_ragged(*state, "a.safetensors", lengths_a, 3, 10);
	hash = fingerprint(((struct folder *)*state)->file);
	stk_hex_encode(hash.bytes, sizeof(hash.bytes), text);
	assert_string_equal(text, "ee48fcc5bf7e9af576819760a14973a0");
}

/* dataset.json of the shards a (3 samples) and b (2), with these changes. */
struct manifest {
	const char *first;   /* name of the first shard */
	uint64_t samples;    /* of the first shard */
	int64_t extra_bytes; /* added to its size */
	const char *dtype;   /* of input_ids */
	const char *hash;    /* of the first shard */
	const char *rest;    /* before the end of the list */
	uint64_t total;
};

static void write_manifest(struct folder *f, const struct manifest *m)
{
	struct stat a, b;
	char text[1024];

	assert_int_equal(stat(folder_path(f, "a.safetensors"), &a), 0);
	assert_int_equal(stat(folder_path(f, "b.safetensors"), &b), 0);
	snprintf(text, sizeof(text),
		 "{\"format\":\"stoker-dataset\",\"version\":1,\"samples\":%" PRIu64
		 ",\"fields\":[{\"name\":\"input_ids\",\"dtype\":\"%s\",\"ragged\":true,"
		 "\"shape\":[]}],\"shards\":["
		 "{\"file\":\"b.safetensors\",\"samples\":2,\"bytes\":%jd,"
		 "\"xxh3_128\":\"00000000000000000000000000000001\"},"
		 "{\"file\":\"%s\",\"samples\":%" PRIu64 ",\"bytes\":%jd,\"xxh3_128\":\"%s\"}%s]}",
		 m->total, m->dtype, (intmax_t)b.st_size, m->first, m->samples,
		 (intmax_t)(a.st_size + m->extra_bytes), m->hash, m->rest);
	write_bytes(f, "dataset.json", text, strlen(text));
}

static const struct manifest sound = {.first = "a.safetensors",
				      .samples = 3,
				      .dtype = "I32",
				      .hash = "00000000000000000000000000000002",
				      .rest = "",
				      .total = 5};

static void write_pair(struct folder *f)
{
	write_ragged(f, "a.safetensors", lengths_a, 3, 10);
	write_ragged(f, "b.safetensors", lengths_b, 2, 50);
}

static void a_manifest_gives_the_order_and_enters_the_fingerprint(void **state)
{
	_cleanup_(stkd_dataset_freep) struct stkd_dataset *with = NULL, *other = NULL;
	struct manifest m = sound;
	struct folder *f = *state;
	struct stk_hash without;

	write_pair(f);
	without = fingerprint(f->path);
	write_manifest(f, &m);
	with = opened(f->path);
	assert_int_equal(with->count, 5);
	assert_int_equal(with->lengths[0], lengths_b[0]);
	assert_memory_not_equal(&without, &with->fingerprint, sizeof(without));
	m.hash = "00000000000000000000000000000003";
	write_manifest(f, &m);
	other = opened(f->path);
	assert_memory_not_equal(&other->fingerprint, &with->fingerprint, sizeof(without));
}

static void a_manifest_that_does_not_match_the_folder_is_refused(void **state)
{
	struct folder *f = *state;
	struct manifest m = sound;

	write_pair(f);
	m.samples = 4;
	m.total = 6;
	write_manifest(f, &m);
	refused(f->path, NULL, -EBADMSG, "a.safetensors: 3 samples, dataset.json says 4");
	m = sound;
	m.extra_bytes = -1;
	write_manifest(f, &m);
	refused(f->path, NULL, -EBADMSG, "bytes, dataset.json says ");
	m = sound;
	m.dtype = "I64";
	write_manifest(f, &m);
	refused(f->path, NULL, -EBADMSG, "lists field input_ids: I64 ragged, the shards have");
	write_manifest(f, &sound);
	write_ragged(f, "c.safetensors", lengths_b, 2, 50);
	refused(f->path, NULL, -EBADMSG, "c.safetensors: not listed in dataset.json");
	assert_int_equal(unlink(folder_path(f, "c.safetensors")), 0);
	assert_int_equal(unlink(folder_path(f, "b.safetensors")), 0);
	refused(f->path, NULL, -EBADMSG, "b.safetensors: No such file");
}

static void a_hostile_manifest_is_refused_with_the_place(void **state)
{
	static const char *const names[] = {
		"../a.safetensors", "..", "/etc/passwd", "", ".x", "a/b"};
	struct folder *f = *state;
	struct manifest m = sound;

	write_pair(f);
	for (size_t i = 0; i < STK_ARRAY_SIZE(names); i++) {
		m.first = names[i];
		write_manifest(f, &m);
		refused(f->path, NULL, -EBADMSG, "dataset.json: shards[1]: \"file\" must be");
	}
	m = sound;
	m.first = "b.safetensors";
	write_manifest(f, &m);
	refused(f->path, NULL, -EBADMSG, "b.safetensors is listed twice");
	m = sound;
	m.total = 6;
	write_manifest(f, &m);
	refused(f->path, NULL, -EBADMSG, "\"samples\" is 6, but the shards have 5");
	m = sound;
	m.hash = "0123";
	write_manifest(f, &m);
	refused(f->path, NULL, -EBADMSG, "shards[1]: \"xxh3_128\" must be");
	m = sound;
	m.rest = ",7";
	write_manifest(f, &m);
	refused(f->path, NULL, -EBADMSG, "shards[2]: \"file\"");
	m = sound;
	m.dtype = "I128";
	write_manifest(f, &m);
	refused(f->path, NULL, -EBADMSG, "fields[0]: \"dtype\"");
	write_bytes(f, "dataset.json", "", 0);
	refused(f->path, NULL, -EBADMSG, "dataset.json: empty file");
	write_bytes(f, "dataset.json", "{\"format\":", 10);
	refused(f->path, NULL, -EBADMSG, "dataset.json: line 1");
	write_bytes(f, "dataset.json", "[]", 2);
	refused(f->path, NULL, -EBADMSG, "\"format\" must be");
}

static unsigned open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static void many_shards_need_few_descriptors(void **state)
{
	_cleanup_(stkd_dataset_freep) struct stkd_dataset *dataset = NULL;
	struct rlimit before, few;
	struct folder *f = *state;
	unsigned open_before;

	for (int i = 0; i < 200; i++) {
		char name[32];

		snprintf(name, sizeof(name), "s%03d.safetensors", i);
		write_ragged(f, name, lengths_b, 2, i);
	}
	open_before = open_descriptors();
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	few = before;
	few.rlim_cur = 32;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	dataset = opened(f->path);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_int_equal(dataset->count, 400);
	assert_int_equal(open_descriptors(), open_before);
}

static void opening_tells_its_progress_and_stops_when_asked(void **state)
{
	struct stkd_dataset *dataset = NULL;
	struct stkd_progress progress = {0};
	struct folder *f = *state;
	struct stk_err err = {0};

	write_three(f);
	assert_int_equal(stkd_dataset_open(f->path, NULL, NULL, &progress, &dataset, &err), 0);
	assert_string_equal(progress.stage, "reading lengths");
	assert_int_equal(progress.done, 3);
	assert_int_equal(progress.total, 3);
	dataset = stkd_dataset_free(dataset);
	progress.cancel = true;
	assert_int_equal(stkd_dataset_open(f->path, NULL, NULL, &progress, &dataset, &err),
			 -ECANCELED);
	assert_null(dataset);
}

#define test(f) cmocka_unit_test_setup_teardown(f, folder_setup, folder_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(a_folder_is_its_shards_in_name_order),
		test(every_sample_is_found_in_its_shard_and_row),
		test(empty_shards_at_both_ends_take_no_sample),
		test(a_glob_and_a_single_file_name_shards_too),
		test(a_folder_without_shards_or_samples_is_refused),
		test(all_bad_shards_are_listed_in_one_error),
		test(shards_that_disagree_in_fields_are_refused_with_both),
		test(the_length_field_is_chosen_or_the_choices_are_listed),
		test(aligned_says_which_fields_share_every_length),
		test(tools_may_look_at_what_has_no_length),
		test(more_fields_than_a_dataset_has_room_for_are_refused),
		test(the_fingerprint_follows_the_data_and_never_the_place),
		test(the_fingerprint_is_the_same_on_every_machine_and_release),
		test(a_manifest_gives_the_order_and_enters_the_fingerprint),
		test(a_manifest_that_does_not_match_the_folder_is_refused),
		test(a_hostile_manifest_is_refused_with_the_place),
		test(many_shards_need_few_descriptors),
		test(opening_tells_its_progress_and_stops_when_asked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
