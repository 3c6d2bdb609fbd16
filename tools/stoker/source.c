/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/stoker/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SPEC_SIZE_MAX (1u << 20)

static bool ends_with(const char *word, const char *end)
{
	size_t n = strlen(word), m = strlen(end);

	return n > m && !strcmp(word + n - m, end);
}

int source_read_file(const char *path, size_t max, char **ret_text, size_t *ret_size)
{
	_cleanup_(stk_freep) char *text = malloc(max + 1);
	_cleanup_(stk_closep) int fd = -1;
	size_t size = 0;
	ssize_t n;

	if (!text)
		return -ENOMEM;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	while ((n = read(fd, text + size, max + 1 - size)) > 0) {
		size += (size_t)n;
		if (size > max)
			return -EFBIG;
	}
	if (n < 0)
		return -errno;
	text[size] = '\0';
	*ret_text = STK_STEAL(text);
	*ret_size = size;
	return 0;
}

/* What the first word names: a spec file, shards or a stream. */
static int take_first(const char *command, const char *word, struct source *source,
		      struct stk_client_opts *opts)
{
	size_t size;
	int r;

	if (ends_with(word, ".yaml") || ends_with(word, ".yml") || ends_with(word, ".json")) {
		r = source_read_file(word, SPEC_SIZE_MAX, &source->spec, &size);
		if (r == 0 && memchr(source->spec, 0, size))
			r = -EBADMSG;
		if (r < 0) {
			fprintf(stderr, "%s: spec %s: %s\n", command, word, strerror(-r));
			return r;
		}
		opts->spec = source->spec;
	} else if (strpbrk(word, "/*?[") || access(word, F_OK) == 0) {
		opts->path = word;
	} else {
		opts->stream = word;
	}
	return 0;
}

int source_take(const char *command, char **words, size_t n, struct source *source,
		struct stk_client_opts *opts)
{
	source->keys = calloc(n, sizeof(*source->keys));
	if (!source->keys)
		return -ENOMEM;
	for (size_t i = 1; i < n; i++) {
		if (!strchr(words[i], '=')) {
			fprintf(stderr, "%s: \"%s\" is not KEY=VALUE\n", command, words[i]);
			return -EINVAL;
		}
		source->keys[i - 1] = words[i];
	}
	opts->keys = source->keys;
	return take_first(command, words[0], source, opts);
}

void source_deinit(struct source *source)
{
	free(source->spec);
	free(source->keys);
}
