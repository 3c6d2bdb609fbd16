/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Configuration: defaults, files over files, streams, errors with file and line, and the shipped
 * stokerd.yaml. One thread; works in a temporary directory.
 */
#include <errno.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "daemon/conf.h"

static char dir[] = "/tmp/stk-test-conf-XXXXXX";
static char conf_path[64];

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static int setup(void **state)
{
	(void)state;
	strcpy(dir + sizeof(dir) - 7, "XXXXXX");
	if (!mkdtemp(dir))
		return -1;
	snprintf(conf_path, sizeof(conf_path), "%s/stokerd.yaml", dir);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	return nftw(dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static void put(const char *name, const char *text)
{
	char path[128];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	file = fopen(path, "w");
	assert_non_null(file);
	fputs(text, file);
	assert_int_equal(fclose(file), 0);
}

static void make_dropins(void)
{
	char path[128];

	snprintf(path, sizeof(path), "%s.d", conf_path);
	assert_int_equal(mkdir(path, 0700), 0);
}

static struct stkd_conf *load(void)
{
	struct stkd_conf *conf = NULL;
	struct stk_err err = {0};

	if (stkd_conf_load(conf_path, &conf, &err) < 0)
		fail_msg("refused: %s", err.text);
	return conf;
}

/* @want may start with the line: ":3: ...". */
static void refuse(const char *yaml, const char *want)
{
	struct stkd_conf *conf = NULL;
	struct stk_err err = {0};
	char text[512];

	put("stokerd.yaml", yaml);
	snprintf(text, sizeof(text), "%s%s", *want == ':' ? conf_path : "", want);
	assert_int_equal(stkd_conf_load(conf_path, &conf, &err), -EINVAL);
	assert_null(conf);
	if (!strstr(err.text, text))
		fail_msg("%s: \"%s\" lacks \"%s\"", yaml, err.text, text);
}

static void assert_defaults(const struct stkd_conf *conf)
{
	assert_string_equal(conf->socket, "/run/stoker/stokerd.sock");
	assert_int_equal(conf->memory, 0);
	assert_int_equal(conf->cpu, 250000);
	assert_int_equal(conf->workers, 0);
	assert_int_equal(conf->lock, -1);
	assert_int_equal(conf->numa, -1);
	assert_int_equal(conf->attach_timeout_ms, 300000);
	assert_int_equal(conf->seat_grace_ms, 60000);
	assert_int_equal(conf->linger_ms, 5000);
	assert_int_equal(conf->header_max, 100000000);
	assert_null(conf->users);
	assert_null(conf->groups);
}

static void without_a_file_everything_has_a_default(void **state)
{
	struct stkd_conf *conf = NULL;

	(void)state;
	assert_int_equal(stkd_conf_new(&conf, NULL), 0);
	assert_defaults(conf);
	assert_int_equal(conf->nstreams, 0);
	assert_null(stkd_conf_stream(conf, "x"));
	stkd_conf_free(conf);
}

static void an_empty_file_is_the_defaults(void **state)
{
	struct stkd_conf *conf;

	(void)state;
	put("stokerd.yaml", "# nothing\n");
	conf = load();
	assert_defaults(conf);
	stkd_conf_free(conf);
}

static void every_key_is_read(void **state)
{
	struct stkd_conf *conf;
	const struct stk_spec *spec;

	(void)state;
	put("stokerd.yaml",
	    "socket: /x\nmemory: 2GiB\ncpu: 1\nworkers: 512\nlock: require\nnuma: try\n"
	    "attach_timeout: 1s\nseat_grace: 0s\nlinger: 250ms\nheader_max: 1MiB\n"
	    "users: [alice, 1000]\ngroups:\n  - ml\n"
	    "streams:\n- name: a\n  data: /d\n  rows: 4\n- {name: b, data: [/e, /f]}\n");
	conf = load();
	assert_string_equal(conf->socket, "/x");
	assert_int_equal(conf->memory, UINT64_C(2) << 30);
	assert_int_equal(conf->cpu, 1000000);
	assert_int_equal(conf->workers, 512);
	assert_int_equal(conf->lock, STK_NEED_REQUIRE);
	assert_int_equal(conf->numa, STK_NEED_TRY);
	assert_int_equal(conf->attach_timeout_ms, 1000);
	assert_int_equal(conf->seat_grace_ms, 0);
	assert_int_equal(conf->linger_ms, 250);
	assert_int_equal(conf->header_max, 1 << 20);
	assert_string_equal(conf->users[0], "alice");
	assert_string_equal(conf->users[1], "1000");
	assert_null(conf->users[2]);
	assert_string_equal(conf->groups[0], "ml");
	assert_int_equal(conf->nstreams, 2);
	spec = stkd_conf_stream(conf, "a");
	assert_int_equal(spec->rows, 4);
	assert_int_equal(stkd_conf_stream(conf, "b")->ndata, 2);
	assert_null(stkd_conf_stream(conf, "c"));
	stkd_conf_free(conf);
}

static void dropins_override_in_name_order_and_add_streams(void **state)
{
	struct stkd_conf *conf;

	(void)state;
	make_dropins();
	put("stokerd.yaml",
	    "workers: 1\nmemory: 1GiB\nusers: [a, b]\nstreams:\n- {name: one, data: /1}\n");
	put("stokerd.yaml.d/20-b.yaml", "workers: 3\nstreams:\n- {name: three, data: /3}\n");
	put("stokerd.yaml.d/10-a.yaml",
	    "workers: 2\nusers: [c]\nstreams:\n- {name: two, data: /2}\n");
	put("stokerd.yaml.d/Z.yaml", "cpu: 0.5\nmemory:\n");
	put("stokerd.yaml.d/.hidden.yaml", "workers: [broken\n");
	put("stokerd.yaml.d/30-c.yaml.bak", "workers: [broken\n");
	put("stokerd.yaml.d/README", "workers: [broken\n");
	conf = load();
	assert_int_equal(conf->workers, 3);
	assert_int_equal(conf->cpu, 500000);
	assert_int_equal(conf->memory, 0); /* null: back to the default */
	assert_string_equal(conf->users[0], "c");
	assert_null(conf->users[1]);
	assert_int_equal(conf->nstreams, 3);
	assert_string_equal(conf->streams[0]->name, "one");
	assert_string_equal(conf->streams[1]->name, "two");
	assert_string_equal(conf->streams[2]->name, "three");
	stkd_conf_free(conf);
}

static void an_error_in_a_dropin_names_it(void **state)
{
	struct stkd_conf *conf = NULL;
	struct stk_err err = {0};
	char want[192];

	(void)state;
	make_dropins();
	put("stokerd.yaml", "streams:\n- {name: one, data: /1}\n");
	put("stokerd.yaml.d/a.yaml", "\nworkers: 513\n");
	assert_int_equal(stkd_conf_load(conf_path, &conf, &err), -EINVAL);
	snprintf(want, sizeof(want),
		 "%s.d/a.yaml:2: workers must be a whole number from 0 to 512 (threads)",
		 conf_path);
	assert_non_null(strstr(err.text, want));
	put("stokerd.yaml.d/a.yaml", "streams:\n- data: /2\n  name: one\n");
	assert_int_equal(stkd_conf_load(conf_path, &conf, &err), -EINVAL);
	snprintf(want, sizeof(want), "%s.d/a.yaml:3: stream \"one\" is already defined", conf_path);
	assert_non_null(strstr(err.text, want));
	assert_null(conf);
}

static void relative_data_is_beside_its_file(void **state)
{
	struct stkd_conf *conf;
	char want[128], path[128], *cwd = getcwd(NULL, 0);

	(void)state;
	make_dropins();
	put("stokerd.yaml", "streams:\n- {name: a, data: [x/y, /abs]}\n");
	put("stokerd.yaml.d/b.yaml", "streams:\n- {name: b, data: z}\n");
	/* The configuration itself may be named by a relative path. */
	assert_int_equal(chdir(dir), 0);
	strcpy(path, conf_path);
	strcpy(conf_path, "stokerd.yaml");
	conf = load();
	assert_int_equal(chdir(cwd), 0);
	snprintf(want, sizeof(want), "%s/x/y", dir);
	assert_string_equal(conf->streams[0]->data[0].path, want);
	assert_string_equal(conf->streams[0]->data[1].path, "/abs");
	snprintf(want, sizeof(want), "%s.d/z", path);
	assert_string_equal(conf->streams[1]->data[0].path, want);
	stkd_conf_free(conf);
	free(cwd);
}

static void bad_configuration_is_refused_with_file_and_line(void **state)
{
	(void)state;
	refuse("wrokers: 1",
	       ":1: unknown configuration key \"wrokers\"; did you mean \"workers\"?");
	refuse("\nnum_workers: 1", ":2: unknown configuration key \"num_workers\"; use workers");
	refuse("rows: 1",
	       ":1: unknown configuration key \"rows\"; use rows of a stream, beneath streams");
	refuse("cpu: 0", ":1: cpu must be a number from 1e-06 to 1, not \"0\"");
	refuse("cpu: 1.5", "cpu must be a number from 1e-06 to 1, not \"1.5\"");
	refuse("cpu: nan", "not \"nan\"");
	refuse("cpu: -1", "not \"-1\"");
	refuse("memory: 16G",
	       "memory must be a size from 0 to 1EiB (in B, KiB, MiB, GiB, TiB or kB, MB, GB, TB)");
	refuse("attach_timeout: 300",
	       "attach_timeout must be a time from 1s to 24h (in ms, s, min or h), not \"300\"");
	refuse("attach_timeout: 0s", "not \"0s\"");
	refuse("linger: 25h", "not \"25h\"");
	refuse("header_max: 1", "header_max must be a size from 4KiB to 1TiB");
	refuse("users: alice", "users must be a list of 1 to 1024 names or ids, not \"alice\"");
	refuse("users: []", "users must be a list");
	refuse("groups: [[a]]", "each item must be a name or an id, not a list");
	refuse("users: ['']", "must be a name or an id, not the text \"\"");
	refuse("workers: 1\nworkers: 2", ":2: duplicate key \"workers\", first at ");
	refuse("\tworkers: 1", ":1: tabs cannot indent YAML");
	refuse("- a", ":1: expected a map of configuration keys (KEY: VALUE), not a list");
	refuse("a: \xff", ":1: byte 3: ");
	refuse("socket: \"a\\0b\"", ":1: a text must not contain a NUL");
}

static void socket_paths_fit_a_socket_address(void **state)
{
	char yaml[256] = "socket: ";

	(void)state;
	memset(yaml + 8, 'x', 108);
	refuse(yaml, "socket must be a text of 1 to 107 bytes");
	yaml[8 + 107] = '\0';
	put("stokerd.yaml", yaml);
	stkd_conf_free(load());
}

static void bad_streams_are_refused_with_file_and_line(void **state)
{
	(void)state;
	refuse("streams: x", ":1: streams must be a list of streams (- name: NAME), not \"x\"");
	refuse("streams:\n- x", ":2: each item must be a map with name and data, not \"x\"");
	refuse("streams:\n-", ":2: each item must be a map with name and data, not empty");
	refuse("streams:\n- data: /x", ":2: a stream needs a name");
	refuse("streams:\n- name: x", ":2: a stream needs data, a path of shards");
	refuse("streams:\n- name: x\n  data: /x\n  batch_size: 8",
	       ":4: unknown stream key \"batch_size\"; use rows");
	refuse("streams:\n- name: x\n  data: /x\n  num_workers: 8",
	       ":4: unknown stream key \"num_workers\"; use the daemon's workers (configuration "
	       "key workers)");
	refuse("streams:\n- {name: x, data: /x}\n- {name: x, data: /y}\n",
	       ":3: stream \"x\" is already defined, names must differ");
	refuse("streams:\n- name: x\n  data: /x\n  fields:\n    - {name: a, dtype: u8, pad: 300}\n",
	       ":5: pad 300 of field \"a\" does not fit dtype U8");
}

static void missing_and_unreadable_files_are_errors(void **state)
{
	struct stkd_conf *conf = NULL;
	struct stk_err err = {0};

	(void)state;
	assert_int_equal(stkd_conf_load(conf_path, &conf, &err), -ENOENT);
	assert_non_null(strstr(err.text, conf_path));
	put("stokerd.yaml", "");
	put("stokerd.yaml.d", "a file, not a directory");
	assert_int_equal(stkd_conf_load(conf_path, &conf, &err), -ENOTDIR);
	assert_non_null(strstr(err.text, "stokerd.yaml.d"));
	assert_null(conf);
}

static void configuration_keys_make_sense(void **state)
{
	const struct stk_key_table *t = &stkd_conf_table;

	(void)state;
	for (size_t i = 0; i < t->nkeys; i++) {
		assert_true(t->keys[i].help && *t->keys[i].help);
		assert_true(t->keys[i].min <= t->keys[i].max);
		if (t->keys[i].type == STK_KEY_CUSTOM)
			assert_true(t->keys[i].parse && t->keys[i].to_json);
		for (size_t j = 0; j < t->nhints; j++)
			assert_string_not_equal(t->hints[j].name, t->keys[i].name);
	}
}

static void configuration_as_json_reads_back(void **state)
{
	struct stkd_conf *a, *b = NULL;
	struct stk_tree *tree = NULL;
	json_t *json, *again;

	(void)state;
	put("stokerd.yaml", "cpu: 0.3\nusers: [x]\nlinger: 1s\nstreams:\n- {name: a, data: /d}\n");
	a = load();
	json = stk_keys_to_json(&stkd_conf_table, a);
	assert_int_equal(stk_tree_from_json("conf", json, &tree, NULL), 0);
	assert_int_equal(stkd_conf_new(&b, NULL), 0);
	assert_int_equal(stk_keys_walk(&stkd_conf_table, b, tree, NULL, NULL), 0);
	again = stk_keys_to_json(&stkd_conf_table, b);
	assert_true(json_equal(json, again));
	assert_int_equal(json_array_size(json_object_get(json, "streams")), 1);
	json_decref(json);
	json_decref(again);
	stk_tree_free(tree);
	stkd_conf_free(a);
	stkd_conf_free(b);
}

/* The shipped file with "#" taken from each key line; prose ("# text") stays a comment. */
static char *uncommented(void)
{
	FILE *in = fopen(STK_CONFIG_FILE, "r"), *out;
	char *text = NULL, line[512];
	size_t size;

	assert_non_null(in);
	out = open_memstream(&text, &size);
	while (fgets(line, sizeof(line), in)) {
		bool key = line[0] == '#' && (line[1] != ' ' || line[2] == ' ');

		fputs(line + key, out);
	}
	fclose(in);
	fclose(out);
	return text;
}

static void the_shipped_file_is_the_defaults(void **state)
{
	struct stkd_conf *conf = NULL;
	struct stk_err err = {0};

	(void)state;
	if (stkd_conf_load(STK_CONFIG_FILE, &conf, &err) < 0)
		fail_msg("refused: %s", err.text);
	assert_defaults(conf);
	assert_int_equal(conf->nstreams, 0);
	stkd_conf_free(conf);
}

static void every_line_of_the_shipped_file_parses_uncommented_to_the_defaults(void **state)
{
	char *text = uncommented();
	struct stk_spec *plain = NULL;
	struct stk_tree *tree = NULL;
	struct stkd_conf *conf;
	struct stk_hash a, b;

	(void)state;
	put("stokerd.yaml", text);
	conf = load();
	assert_defaults(conf);
	assert_int_equal(conf->nstreams, 1);
	assert_int_equal(stk_spec_parse(NULL, NULL, &plain, NULL), 0);
	assert_int_equal(stk_spec_digest(plain, &a), 0);
	assert_int_equal(stk_spec_digest(conf->streams[0], &b), 0);
	assert_memory_equal(&a, &b, sizeof(a));
	/* Every key of both tables is there, and (it parsed) no other. */
	assert_int_equal(stk_tree_from_yaml("x", text, strlen(text), &tree, NULL), 0);
	assert_int_equal(tree->nchildren, stkd_conf_table.nkeys);
	assert_int_equal(stk_tree_get(tree, "streams")->children[0]->nchildren,
			 stk_spec_table.nkeys);
	stk_tree_free(tree);
	stk_spec_free(plain);
	stkd_conf_free(conf);
	free(text);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(without_a_file_everything_has_a_default),
		TEST(an_empty_file_is_the_defaults),
		TEST(every_key_is_read),
		TEST(dropins_override_in_name_order_and_add_streams),
		TEST(an_error_in_a_dropin_names_it),
		TEST(relative_data_is_beside_its_file),
		TEST(bad_configuration_is_refused_with_file_and_line),
		TEST(socket_paths_fit_a_socket_address),
		TEST(bad_streams_are_refused_with_file_and_line),
		TEST(missing_and_unreadable_files_are_errors),
		TEST(configuration_keys_make_sense),
		TEST(configuration_as_json_reads_back),
		TEST(the_shipped_file_is_the_defaults),
		TEST(every_line_of_the_shipped_file_parses_uncommented_to_the_defaults),
	};

	return cmocka_run_group_tests_name("conf", tests, NULL, NULL);
}
