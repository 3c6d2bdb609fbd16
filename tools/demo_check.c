/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The check of tools/demo: reads the source again, with another reader than `stoker write`, and
 * holds what the trainers wrote against it: each line exactly once, byte for byte. One thread.
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define KEYS_MAX 16

struct sample {
	uint64_t length, hash;
	uint32_t seen;
};

struct check {
	const char *keys[KEYS_MAX];
	size_t nkeys;
	struct sample *samples;
	size_t nsamples, room;
	uint64_t bad;
};

/* Says the first few; counts all. */
static void bad(struct check *c, const char *where, uint64_t number, const char *what)
{
	if (c->bad++ < 5)
		fprintf(stderr, "demo_check: %s %" PRIu64 ": %s\n", where, number, what);
}

/* The text of a line: its keys, joined by a newline. */
static int hash_line(struct check *c, const json_t *line, struct sample *ret)
{
	XXH3_state_t *state = XXH3_createState();

	if (!state)
		return -ENOMEM;
	XXH3_64bits_reset(state);
	*ret = (struct sample){0};
	for (size_t i = 0; i < c->nkeys; i++) {
		const json_t *value = json_object_get(line, c->keys[i]);

		if (!json_is_string(value)) {
			XXH3_freeState(state);
			return -EBADMSG;
		}
		if (i > 0)
			XXH3_64bits_update(state, "\n", 1);
		XXH3_64bits_update(state, json_string_value(value), json_string_length(value));
		ret->length += json_string_length(value) + (i > 0);
	}
	ret->hash = XXH3_64bits_digest(state);
	XXH3_freeState(state);
	return 0;
}

static int add(struct check *c, const struct sample *sample)
{
	if (c->nsamples == c->room) {
		size_t room = c->room ? 2 * c->room : 4096;
		struct sample *more = realloc(c->samples, room * sizeof(*more));

		if (!more)
			return -ENOMEM;
		c->samples = more;
		c->room = room;
	}
	c->samples[c->nsamples++] = *sample;
	return 0;
}

static int read_source(struct check *c, FILE *in)
{
	char *line = NULL;
	size_t room = 0;
	int r = 0;

	while (r == 0 && getline(&line, &room, in) > 0) {
		struct sample sample;
		json_t *json;

		if (line[strspn(line, " \t\r\n")] == '\0')
			continue;
		json = json_loads(line, JSON_ALLOW_NUL, NULL);
		r = hash_line(c, json, &sample);
		if (r == 0)
			r = add(c, &sample);
		else
			fprintf(stderr, "demo_check: sample %zu of the source cannot be read\n",
				c->nsamples);
		json_decref(json);
	}
	free(line);
	return r;
}

static void read_trainer(struct check *c, FILE *in, const char *name)
{
	char line[128];

	for (uint64_t number = 1; fgets(line, sizeof(line), in); number++) {
		uint64_t id, length, hash;
		struct sample *s;

		if (!strncmp(line, "figure ", 7))
			continue;
		if (sscanf(line, "sample %" SCNu64 " %" SCNu64 " %" SCNx64, &id, &length, &hash) !=
		    3) {
			bad(c, name, number, "not a line of a trainer");
			continue;
		}
		if (id >= c->nsamples) {
			bad(c, "sample", id, "there is none of this number");
			continue;
		}
		s = &c->samples[id];
		s->seen++;
		if (s->length != length || s->hash != hash)
			bad(c, "sample", id, "its bytes are not those of the source");
	}
}

static void count(struct check *c)
{
	for (size_t i = 0; i < c->nsamples; i++) {
		if (c->samples[i].seen == 0)
			bad(c, "sample", i, "did not arrive");
		else if (c->samples[i].seen > 1)
			bad(c, "sample", i, "arrived more than once");
	}
}

static int with_file(struct check *c, const char *path, bool source)
{
	FILE *in = fopen(path, "r");
	int r = 0;

	if (!in) {
		r = -errno;
		fprintf(stderr, "demo_check: %s: %s\n", path, strerror(-r));
		return r;
	}
	if (source)
		r = read_source(c, in);
	else
		read_trainer(c, in, path);
	fclose(in);
	return r;
}

int main(int argc, char **argv)
{
	struct check c = {0};
	int r;

	if (argc < 4) {
		fprintf(stderr, "usage: demo_check SOURCE.jsonl KEY[,KEY] TRAINER-OUTPUT...\n");
		return 2;
	}
	for (char *key = strtok(argv[2], ","); key && c.nkeys < KEYS_MAX; key = strtok(NULL, ","))
		c.keys[c.nkeys++] = key;
	r = with_file(&c, argv[1], true);
	for (int i = 3; r == 0 && i < argc; i++)
		r = with_file(&c, argv[i], false);
	if (r == 0)
		count(&c);
	if (r == 0 && c.nsamples && !c.bad)
		printf("%zu samples, each exactly once over %d ranks, bytes equal to the source\n",
		       c.nsamples, argc - 3);
	else
		fprintf(stderr, "demo_check: %zu samples, %" PRIu64 " faults\n", c.nsamples, c.bad);
	free(c.samples);
	return r == 0 && c.nsamples && !c.bad ? 0 : 1;
}
