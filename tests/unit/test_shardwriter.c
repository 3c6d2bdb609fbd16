/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows to shard files: bytes, order and alignment of tensors, where shards are cut, and what a
 * directory looks like after success, failure and an older set.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "tools/stoker/jsonl.h"
#include "tools/stoker/shardwriter.h"

struct fixture {
	char dir[64];
	struct field fields[3];
	size_t nfields;
	struct shardwriter_opts opts;
	struct shardwriter *writer;
	struct stk_err err;
};

static void add_field(struct fixture *f, enum field_kind kind, const char *word)
{
	assert_int_equal(field_parse(word, kind, &f->fields[f->nfields++], &f->err), 0);
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	strcpy(f->dir, "/tmp/test_shardwriter.XXXXXX");
	assert_non_null(mkdtemp(f->dir));
	f->opts = (struct shardwriter_opts){.dir = f->dir, .stop_fd = -1};
	add_field(f, FIELD_RAGGED, "x=x:u8");
	*state = f;
	return 0;
}

static void remove_dir(const char *path)
{
	char name[512];
	DIR *dir = opendir(path);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
		unlink(name);
	}
	if (dir)
		closedir(dir);
	rmdir(path);
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	shardwriter_free(f->writer);
	for (size_t i = 0; i < f->nfields; i++)
		field_deinit(&f->fields[i]);
	remove_dir(f->dir);
	free(f);
	return 0;
}

static int open_writer(struct fixture *f)
{
	return shardwriter_open(&f->opts, f->fields, f->nfields, &f->writer, &f->err);
}

static int put(struct fixture *f, const char *line)
{
	int r = jsonl_row(line, strlen(line), shardwriter_columns(f->writer), f->nfields, &f->err);

	return r < 0 ? r : shardwriter_row(f->writer, &f->err);
}

static void finish(struct fixture *f)
{
	assert_int_equal(shardwriter_finish(f->writer, &f->err), 0);
	f->writer = shardwriter_free(f->writer);
}

/* A whole set of that many samples, one in each shard. */
static void write_set(struct fixture *f, unsigned shards)
{
	f->opts.samples_max = 1;
	assert_int_equal(open_writer(f), 0);
	for (unsigned i = 0; i < shards; i++)
		assert_int_equal(put(f, "{\"x\": [1, 2, 3]}"), 0);
	finish(f);
}

static char *slurp(struct fixture *f, const char *name, size_t *ret_size)
{
	char path[512], *text = calloc(1, 4 << 20);
	FILE *in;

	snprintf(path, sizeof(path), "%s/%s", f->dir, name);
	in = fopen(path, "r");
	assert_non_null(in);
	assert_non_null(text);
	*ret_size = fread(text, 1, 4 << 20, in);
	fclose(in);
	return text;
}

static void touch(struct fixture *f, const char *name)
{
	char path[512];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", f->dir, name);
	fd = open(path, O_WRONLY | O_CREAT, 0666);
	assert_true(fd >= 0);
	close(fd);
}

/* The names in the directory, sorted, each followed by a space. */
static void expect_names(struct fixture *f, const char *expected)
{
	char names[1024] = "";
	struct dirent **list;
	int n = scandir(f->dir, &list, NULL, alphasort);

	for (int i = 0; i < n; i++) {
		if (strcmp(list[i]->d_name, ".") && strcmp(list[i]->d_name, ".."))
			strcat(strcat(names, list[i]->d_name), " ");
		free(list[i]);
	}
	free(list);
	assert_string_equal(names, expected);
}

static json_t *manifest(struct fixture *f)
{
	size_t size;
	char *text = slurp(f, "dataset.json", &size);
	json_t *json = json_loadb(text, size, 0, NULL);

	assert_non_null(json);
	free(text);
	return json;
}

static void tensors_come_widest_first_and_the_data_begins_at_a_multiple_of_8(void **state)
{
	static const char expected[] =
		"{\"__metadata__\":{\"stoker\":\"ragged=values+offsets;version=1\"},"
		"\"x.offsets\":{\"dtype\":\"I64\",\"shape\":[3],\"data_offsets\":[0,24]},"
		"\"e\":{\"dtype\":\"F32\",\"shape\":[2,1,2],\"data_offsets\":[24,40]},"
		"\"b\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[40,42]},"
		"\"x.values\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[42,45]}}";
	static const int64_t offsets[] = {0, 1, 3};
	static const float e[] = {1, 2, 3, 4};
	struct fixture *f = *state;
	uint64_t header;
	size_t size;
	char *shard;

	add_field(f, FIELD_FIXED, "b=b:bool");
	add_field(f, FIELD_FIXED, "e=e:f32:1x2");
	assert_int_equal(open_writer(f), 0);
	assert_int_equal(put(f, "{\"x\": [7], \"b\": true, \"e\": [[1, 2]]}"), 0);
	assert_int_equal(put(f, "{\"x\": [8, 9], \"b\": false, \"e\": [[3, 4]]}"), 0);
	finish(f);
	shard = slurp(f, "shard-00000.safetensors", &size);
	memcpy(&header, shard, 8);
	assert_int_equal(header % 8, 0);
	assert_int_equal(size, 8 + header + 45);
	assert_memory_equal(shard + 8, expected, sizeof(expected) - 1);
	for (size_t i = sizeof(expected) - 1; i < header; i++)
		assert_int_equal(shard[8 + i], ' ');
	assert_memory_equal(shard + 8 + header, offsets, sizeof(offsets));
	assert_memory_equal(shard + 8 + header + 24, e, sizeof(e));
	assert_memory_equal(shard + 8 + header + 40, "\1\0\7\10\11", 5);
	free(shard);
}

static void the_manifest_has_sizes_counts_and_hashes_of_whole_files(void **state)
{
	struct fixture *f = *state;
	XXH128_canonical_t canonical;
	json_t *json, *shard;
	char hex[33], *bytes;
	size_t size;

	write_set(f, 2);
	json = manifest(f);
	assert_string_equal(json_string_value(json_object_get(json, "format")), "stoker-dataset");
	assert_int_equal(json_integer_value(json_object_get(json, "version")), 1);
	assert_int_equal(json_integer_value(json_object_get(json, "samples")), 2);
	shard = json_array_get(json_object_get(json, "shards"), 1);
	assert_string_equal(json_string_value(json_object_get(shard, "file")),
			    "shard-00001.safetensors");
	assert_int_equal(json_integer_value(json_object_get(shard, "samples")), 1);
	bytes = slurp(f, "shard-00001.safetensors", &size);
	assert_int_equal(json_integer_value(json_object_get(shard, "bytes")), size);
	XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, size));
	for (int i = 0; i < 16; i++)
		snprintf(hex + 2 * i, 3, "%02x", canonical.digest[i]);
	assert_string_equal(json_string_value(json_object_get(shard, "xxh3_128")), hex);
	free(bytes);
	json_decref(json);
}

static void no_shard_of_several_samples_exceeds_its_bytes(void **state)
{
	struct fixture *f = *state;
	json_t *json, *shard;
	size_t i;

	f->opts.bytes_max = 600;
	assert_int_equal(open_writer(f), 0);
	for (i = 0; i < 100; i++)
		assert_int_equal(put(f, "{\"x\": [1, 2, 3, 4, 5, 6, 7, 8]}"), 0);
	finish(f);
	json = manifest(f);
	assert_true(json_array_size(json_object_get(json, "shards")) > 2);
	json_array_foreach (json_object_get(json, "shards"), i, shard)
		assert_true(json_integer_value(json_object_get(shard, "bytes")) <= 600);
	json_decref(json);
}

static void a_sample_larger_than_a_shard_gets_its_own(void **state)
{
	struct fixture *f = *state;

	f->opts.bytes_max = 1;
	assert_int_equal(open_writer(f), 0);
	assert_int_equal(put(f, "{\"x\": [1]}"), 0);
	assert_int_equal(put(f, "{\"x\": [2]}"), 0);
	finish(f);
	expect_names(f, "dataset.json shard-00000.safetensors shard-00001.safetensors ");
}

static void columns_larger_than_memory_allows_come_out_whole(void **state)
{
	struct fixture *f = *state;
	size_t size, rows = 40, row = 40000;
	char *line = malloc(2 * row + 16), *shard;
	uint64_t header;

	assert_int_equal(open_writer(f), 0);
	for (size_t i = 0; i < rows; i++) {
		strcpy(line, "{\"x\": [");
		for (size_t j = 0; j < row; j++)
			sprintf(line + 7 + 2 * j, "%zu,", i % 10);
		strcpy(line + 7 + 2 * row - 1, "]}");
		assert_int_equal(put(f, line), 0);
	}
	finish(f);
	free(line);
	shard = slurp(f, "shard-00000.safetensors", &size);
	memcpy(&header, shard, 8);
	assert_int_equal(size, 8 + header + 8 * (rows + 1) + rows * row);
	for (size_t i = 0; i < rows * row; i++)
		if (shard[size - rows * row + i] != (char)(i / row % 10))
			fail_msg("byte %zu is wrong", i);
	free(shard);
}

static void a_writer_that_is_not_finished_leaves_nothing(void **state)
{
	struct fixture *f = *state;

	f->opts.samples_max = 1;
	assert_int_equal(open_writer(f), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(put(f, "{\"x\": [1]}"), 0);
	f->writer = shardwriter_free(f->writer);
	expect_names(f, "");
}

static void a_directory_made_for_nothing_is_removed(void **state)
{
	struct fixture *f = *state;
	struct stat st;

	rmdir(f->dir);
	assert_int_equal(open_writer(f), 0);
	assert_int_equal(stat(f->dir, &st), 0);
	f->writer = shardwriter_free(f->writer);
	assert_int_equal(stat(f->dir, &st), -1);
}

static void an_older_set_is_refused_without_force(void **state)
{
	struct fixture *f = *state;

	touch(f, "shard-00007.safetensors");
	assert_int_equal(open_writer(f), -EEXIST);
	assert_non_null(strstr(f->err.text, "already holds shard-00007.safetensors; --force"));
	expect_names(f, "shard-00007.safetensors ");
}

static void force_replaces_a_longer_set_whole(void **state)
{
	struct fixture *f = *state;

	write_set(f, 3);
	f->opts.force = true;
	write_set(f, 1);
	expect_names(f, "dataset.json shard-00000.safetensors ");
}

static void force_keeps_the_older_set_when_the_new_one_fails(void **state)
{
	struct fixture *f = *state;

	write_set(f, 2);
	f->opts.force = true;
	assert_int_equal(open_writer(f), 0);
	assert_int_equal(put(f, "{\"x\": [1]}"), 0);
	assert_int_equal(put(f, "{\"x\": [1]}"), 0);
	f->writer = shardwriter_free(f->writer);
	expect_names(f, "dataset.json shard-00000.safetensors shard-00001.safetensors ");
}

static void a_foreign_shard_is_refused_even_with_force(void **state)
{
	struct fixture *f = *state;

	touch(f, "model.safetensors");
	touch(f, "notes.txt");
	f->opts.force = true;
	assert_int_equal(open_writer(f), -EEXIST);
	assert_non_null(strstr(f->err.text, "model.safetensors"));
	expect_names(f, "model.safetensors notes.txt ");
}

static void what_a_killed_run_left_is_removed(void **state)
{
	struct fixture *f = *state;

	touch(f, ".shard-00000.safetensors.tmp-999999");
	touch(f, ".dataset.json.tmp-999999");
	write_set(f, 1);
	expect_names(f, "dataset.json shard-00000.safetensors ");
}

static void two_writers_at_once_are_refused(void **state)
{
	struct fixture *f = *state;
	struct shardwriter *second = NULL;

	assert_int_equal(open_writer(f), 0);
	assert_int_equal(shardwriter_open(&f->opts, f->fields, f->nfields, &second, &f->err),
			 -EBUSY);
	assert_null(second);
}

static void a_stop_while_a_shard_is_written_leaves_nothing(void **state)
{
	struct fixture *f = *state;
	int stop[2];

	assert_int_equal(pipe(stop), 0);
	f->opts.stop_fd = stop[0];
	assert_int_equal(open_writer(f), 0);
	assert_int_equal(put(f, "{\"x\": [1]}"), 0);
	assert_int_equal(write(stop[1], "x", 1), 1);
	assert_int_equal(shardwriter_finish(f->writer, &f->err), -EINTR);
	f->writer = shardwriter_free(f->writer);
	expect_names(f, "");
	close(stop[0]);
	close(stop[1]);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(tensors_come_widest_first_and_the_data_begins_at_a_multiple_of_8),
		TEST(the_manifest_has_sizes_counts_and_hashes_of_whole_files),
		TEST(no_shard_of_several_samples_exceeds_its_bytes),
		TEST(a_sample_larger_than_a_shard_gets_its_own),
		TEST(columns_larger_than_memory_allows_come_out_whole),
		TEST(a_writer_that_is_not_finished_leaves_nothing),
		TEST(a_directory_made_for_nothing_is_removed),
		TEST(an_older_set_is_refused_without_force),
		TEST(force_replaces_a_longer_set_whole),
		TEST(force_keeps_the_older_set_when_the_new_one_fails),
		TEST(a_foreign_shard_is_refused_even_with_force),
		TEST(what_a_killed_run_left_is_removed),
		TEST(two_writers_at_once_are_refused),
		TEST(a_stop_while_a_shard_is_written_leaves_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
