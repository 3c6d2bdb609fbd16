/* SPDX-License-Identifier: Apache-2.0 */
/*
 * proto/LAYOUT.md says what the compiler says: the tables of each struct, offset by offset. The
 * path of the document is the argument; --print writes the tables as they must be.
 */
#include <ctype.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/shm.h"
#include "proto/state.h"

struct member {
	const char *name;
	size_t offset, size;
};

struct table {
	const char *name;
	size_t size;
	const struct member *members;
	size_t nmembers;
};

#define M(type, member)                                                                            \
	{                                                                                          \
#member, offsetof(struct type, member), sizeof(((struct type *)0)->member)         \
	}
#define T(type)                                                                                    \
	{                                                                                          \
#type, sizeof(struct type), type, STK_ARRAY_SIZE(type)                             \
	}

static const struct member stk_shm_control[] = {
	M(stk_shm_control, magic),           M(stk_shm_control, major),
	M(stk_shm_control, minor),           M(stk_shm_control, header_size),
	M(stk_shm_control, nslots),          M(stk_shm_control, ring_entries),
	M(stk_shm_control, nfields),         M(stk_shm_control, desc_size),
	M(stk_shm_control, nclasses),        M(stk_shm_control, ring_off),
	M(stk_shm_control, desc_off),        M(stk_shm_control, error_off),
	M(stk_shm_control, schema_off),      M(stk_shm_control, schema_size),
	M(stk_shm_control, state_off),       M(stk_shm_control, state_size),
	M(stk_shm_control, file_size),       M(stk_shm_control, slot_size),
	M(stk_shm_control, slots_file_size), M(stk_shm_control, rank),
	M(stk_shm_control, world),           M(stk_shm_control, replicas),
	M(stk_shm_control, micros),          M(stk_shm_control, start_off),
	M(stk_shm_control, start_size),      M(stk_shm_control, reserved0),
	M(stk_shm_control, ready),           M(stk_shm_control, tail),
	M(stk_shm_control, need_kick),       M(stk_shm_control, published),
	M(stk_shm_control, beat_ns),         M(stk_shm_control, cpu),
	M(stk_shm_control, reserved1),
};

static const struct member stk_shm_entry[] = {
	M(stk_shm_entry, kind),  M(stk_shm_entry, slot),  M(stk_shm_entry, era),
	M(stk_shm_entry, micro), M(stk_shm_entry, epoch), M(stk_shm_entry, step),
};

static const struct member stk_shm_desc[] = {
	M(stk_shm_desc, slot),          M(stk_shm_desc, era),
	M(stk_shm_desc, epoch),         M(stk_shm_desc, step),
	M(stk_shm_desc, micro),         M(stk_shm_desc, flags),
	M(stk_shm_desc, memory),        M(stk_shm_desc, shape_class),
	M(stk_shm_desc, rows),          M(stk_shm_desc, rows_real),
	M(stk_shm_desc, rows_bad),      M(stk_shm_desc, width),
	M(stk_shm_desc, max_length),    M(stk_shm_desc, nids),
	M(stk_shm_desc, real_tokens),   M(stk_shm_desc, padded_tokens),
	M(stk_shm_desc, global_tokens), M(stk_shm_desc, extent_size),
	M(stk_shm_desc, ids_off),       M(stk_shm_desc, lengths_off),
	M(stk_shm_desc, step_ns),       M(stk_shm_desc, cursor_size),
	M(stk_shm_desc, reserved0),     M(stk_shm_desc, ready_ns),
	M(stk_shm_desc, row_first_off), M(stk_shm_desc, from_off),
	M(stk_shm_desc, reserved),      M(stk_shm_desc, cursor),
};

static const struct member stk_shm_field[] = {
	M(stk_shm_field, offset), M(stk_shm_field, size),     M(stk_shm_field, nlead),
	M(stk_shm_field, lead),   M(stk_shm_field, reserved),
};

static const struct member stk_shm_seat[] = {
	M(stk_shm_seat, magic),
	M(stk_shm_seat, major),
	M(stk_shm_seat, minor),
	M(stk_shm_seat, ring_entries),
	M(stk_shm_seat, seat),
	M(stk_shm_seat, ring_off),
	M(stk_shm_seat, file_size),
	M(stk_shm_seat, first),
	M(stk_shm_seat, reserved0),
	M(stk_shm_seat, release_tail),
	M(stk_shm_seat, consumed),
	M(stk_shm_seat, batches),
	M(stk_shm_seat, wait_ns),
	M(stk_shm_seat, waits),
	M(stk_shm_seat, waiting_since_ns),
	M(stk_shm_seat, last_next_ns),
	M(stk_shm_seat, reserved1),
	M(stk_shm_seat, wait),
	M(stk_shm_seat, hungry),
	M(stk_shm_seat, reserved2),
};

static const struct member stk_state_header[] = {
	M(stk_state_header, magic),        M(stk_state_header, version),
	M(stk_state_header, plan_version), M(stk_state_header, data),
	M(stk_state_header, spec),         M(stk_state_header, seed),
	M(stk_state_header, world),        M(stk_state_header, cursor_size),
	M(stk_state_header, samples),
};

static const struct table tables[] = {
	T(stk_shm_control), T(stk_shm_entry), T(stk_shm_desc),
	T(stk_shm_field),   T(stk_shm_seat),  T(stk_state_header),
};

static const char *document;

/* "| 16 | 4 | `magic`": how the row of a member begins; a hole is a row of its own. */
static size_t row(char *out, size_t room, size_t offset, size_t size, const char *name)
{
	return (size_t)snprintf(out, room, name ? "| %zu | %zu | `%s` |" : "| %zu | %zu | %s |",
				offset, size, name ? name : "zero");
}

/* Calls fn for each row of a table, holes included. */
static void for_each_row(const struct table *t, void (*fn)(void *data, const char *row), void *data)
{
	size_t end = 0;
	char text[128];

	for (size_t i = 0; i <= t->nmembers; i++) {
		size_t next = i < t->nmembers ? t->members[i].offset : t->size;

		if (next > end) {
			row(text, sizeof(text), end, next - end, NULL);
			fn(data, text);
		}
		if (i == t->nmembers)
			break;
		row(text, sizeof(text), next, t->members[i].size, t->members[i].name);
		fn(data, text);
		end = next + t->members[i].size;
	}
}

/* The next line of a table of numbers, or NULL at the next heading or the end. */
static const char *next_row(const char **at)
{
	while (**at) {
		const char *line = *at, *end = strchr(line, '\n');

		*at = end ? end + 1 : line + strlen(line);
		if (!strncmp(line, "##", 2)) {
			*at = line;
			return NULL;
		}
		if (!strncmp(line, "| ", 2) && isdigit((unsigned char)line[2]))
			return line;
	}
	return NULL;
}

static void expect_row(void *data, const char *want)
{
	const char *line = next_row(data);

	if (!line || strncmp(line, want, strlen(want)))
		fail_msg("LAYOUT.md: want a row \"%s\", it has \"%.*s\"", want,
			 line ? (int)strcspn(line, "\n") : 3, line ? line : "end");
}

static void the_document_has_the_offsets_of_the_compiler(void **state)
{
	(void)state;
	for (size_t i = 0; i < STK_ARRAY_SIZE(tables); i++) {
		char heading[96];
		const char *at;

		snprintf(heading, sizeof(heading), "### struct %s: %zu bytes\n", tables[i].name,
			 tables[i].size);
		at = strstr(document, heading);
		if (!at)
			fail_msg("LAYOUT.md: no heading \"%s\"", heading);
		at += strlen(heading);
		for_each_row(&tables[i], expect_row, &at);
		at = next_row(&at);
		if (at)
			fail_msg("LAYOUT.md: %s has one row too many: %.40s", tables[i].name, at);
	}
}

static void print_row(void *data, const char *text)
{
	(void)data;
	printf("%s  |\n", text);
}

static void print(void)
{
	for (size_t i = 0; i < STK_ARRAY_SIZE(tables); i++) {
		printf("### struct %s: %zu bytes\n\n| offset | size | field | meaning "
		       "|\n|---|---|---|---|\n",
		       tables[i].name, tables[i].size);
		for_each_row(&tables[i], print_row, NULL);
		putchar('\n');
	}
}

static char *read_file(const char *path)
{
	FILE *in = fopen(path, "r");
	char *text = calloc(1, 1 << 20);

	if (!in || !text || !fread(text, 1, (1 << 20) - 1, in)) {
		fprintf(stderr, "%s cannot be read\n", path);
		exit(1);
	}
	fclose(in);
	return text;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_document_has_the_offsets_of_the_compiler),
	};
	char *text;
	int r;

	if (argc == 2 && !strcmp(argv[1], "--print")) {
		print();
		return 0;
	}
	if (argc != 2)
		return 2;
	document = text = read_file(argv[1]);
	r = cmocka_run_group_tests(tests, NULL, NULL);
	free(text);
	return r;
}
