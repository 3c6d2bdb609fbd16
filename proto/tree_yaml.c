/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trees from YAML text, files and KEY=VALUE words, through libyaml's events. What only makes a
 * configuration harder to read (anchors, tags, several documents) is refused. No state, any thread.
 */
#include "proto/tree_build.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

struct reader {
	yaml_parser_t parser;
	const char *name;
	const char *text;
	size_t size;
	bool word; /* one value of one line: its place is the name, block style is refused */
	struct stk_tree_build build;
	struct stk_err *err;
};

/* The caller frees the place. */
static char *place_of(const struct reader *r, size_t line)
{
	char *place = NULL;

	if (r->word)
		return strdup(r->name);
	return asprintf(&place, "%s:%zu", r->name, line + 1) < 0 ? NULL : place;
}

static int refuse(const struct reader *r, size_t line, const char *reason)
{
	_cleanup_(stk_freep) char *place = place_of(r, line);

	if (!place)
		return stk_err_set(r->err, -ENOMEM, "%s: no memory", r->name);
	return stk_err_set(r->err, -EINVAL, "%s: %s", place, reason);
}

/* Whether a tab comes before anything else in this line: the usual mistake, hard to see. */
static bool line_starts_with_tab(const struct reader *r, size_t line)
{
	const char *p = r->text, *end = r->text + r->size;

	for (; line && p < end; p++)
		line -= *p == '\n';
	while (p < end && *p == ' ')
		p++;
	return p < end && *p == '\t';
}

static size_t line_at(const struct reader *r, size_t offset)
{
	size_t line = 0;

	for (size_t i = 0; i < offset && i < r->size; i++)
		line += r->text[i] == '\n';
	return line;
}

static int syntax_error(const struct reader *r)
{
	const yaml_parser_t *p = &r->parser;
	const char *problem = p->problem ? p->problem : "not YAML";
	size_t line = p->problem_mark.line;
	char text[256];

	if (p->error == YAML_MEMORY_ERROR)
		return stk_err_set(r->err, -ENOMEM, "%s: no memory", r->name);
	if (p->error == YAML_READER_ERROR) {
		snprintf(text, sizeof(text), "byte %zu: %s", p->problem_offset, problem);
		return refuse(r, line_at(r, p->problem_offset), text);
	}
	if (line_starts_with_tab(r, line))
		return refuse(r, line, "tabs cannot indent YAML, use spaces");
	if (p->context && strstr(p->context, "an alias")) /* "data=*.safetensors" */
		return refuse(r, line, "a text that starts with * needs quotes");
	if (p->context)
		snprintf(text, sizeof(text), "%s %s (line %zu)", problem, p->context,
			 p->context_mark.line + 1);
	else
		snprintf(text, sizeof(text), "%s", problem);
	return refuse(r, line, text);
}

static int next(struct reader *r, yaml_event_t *event)
{
	return yaml_parser_parse(&r->parser, event) ? 0 : syntax_error(r);
}

/* A plain scalar that YAML reads as no value. */
static bool is_null(const yaml_event_t *event)
{
	static const char *const nulls[] = {"", "~", "null", "Null", "NULL"};
	const char *text = (const char *)event->data.scalar.value;

	if (event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
		return false;
	for (size_t i = 0; i < STK_ARRAY_SIZE(nulls); i++)
		if (!strcmp(text, nulls[i]) && strlen(nulls[i]) == event->data.scalar.length)
			return true;
	return false;
}

static int check_scalar(const struct reader *r, const yaml_event_t *event)
{
	yaml_scalar_style_t style = event->data.scalar.style;

	if (event->data.scalar.anchor)
		return refuse(r, event->start_mark.line, "anchors (&name) are not supported");
	if (event->data.scalar.tag)
		return refuse(r, event->start_mark.line, "tags (!name) are not supported");
	if (r->word && (style == YAML_LITERAL_SCALAR_STYLE || style == YAML_FOLDED_SCALAR_STYLE))
		return refuse(r, 0, "block text is not supported here, use quotes");
	return 0;
}

static int read_scalar(struct reader *r, const char *place, const yaml_event_t *event,
		       struct stk_tree **ret)
{
	int e = check_scalar(r, event);

	if (e < 0)
		return e;
	if (is_null(event))
		return stk__tree_node(&r->build, STK_TREE_NULL, place, ret, r->err);
	e = stk__tree_scalar(&r->build, place, (const char *)event->data.scalar.value,
			     event->data.scalar.length, ret, r->err);
	if (!e)
		(*ret)->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
	return e;
}

static int read_value(struct reader *r, const yaml_event_t *event, unsigned depth,
		      struct stk_tree **ret);

static int read_item(struct reader *r, const yaml_event_t *event, unsigned depth,
		     struct stk_tree *list)
{
	struct stk_tree *child;
	int e = read_value(r, event, depth, &child);

	return e < 0 ? e : stk__tree_add(&r->build, list, NULL, child, r->err);
}

/* @event is the key; the value is read from the parser. */
static int read_pair(struct reader *r, const yaml_event_t *event, unsigned depth,
		     struct stk_tree *map)
{
	const char *key = (const char *)event->data.scalar.value;
	size_t size = event->data.scalar.length;
	_cleanup_(stk_freep) char *place = NULL;
	struct stk_tree *child;
	yaml_event_t value;
	int e;

	if (event->type == YAML_ALIAS_EVENT)
		return refuse(r, event->start_mark.line, "aliases (*name) are not supported");
	if (event->type != YAML_SCALAR_EVENT)
		return refuse(r, event->start_mark.line, "a key must be a text, not a list or map");
	e = check_scalar(r, event);
	if (e < 0)
		return e;
	place = place_of(r, event->start_mark.line);
	if (!place)
		return stk_err_set(r->err, -ENOMEM, "%s: no memory", r->name);
	e = stk__tree_check_key(map, place, key, size, r->err);
	if (e < 0)
		return e;
	e = next(r, &value);
	if (e < 0)
		return e;
	e = read_value(r, &value, depth, &child);
	yaml_event_delete(&value);
	if (e < 0)
		return e;
	/* A list or map may start a line later; its key is what a reader looks for. */
	free(child->place);
	child->place = STK_STEAL(place);
	return stk__tree_add(&r->build, map, key, child, r->err);
}

static int read_children(struct reader *r, unsigned depth, struct stk_tree *node)
{
	bool list = node->type == STK_TREE_LIST;
	yaml_event_type_t end = list ? YAML_SEQUENCE_END_EVENT : YAML_MAPPING_END_EVENT;

	for (;;) {
		yaml_event_t event;
		bool done;
		int e = next(r, &event);

		if (e < 0)
			return e;
		done = event.type == end;
		if (!done)
			e = (list ? read_item : read_pair)(r, &event, depth, node);
		yaml_event_delete(&event);
		if (e < 0 || done)
			return e;
	}
}

static int check_collection(const struct reader *r, const yaml_event_t *event, unsigned depth)
{
	bool list = event->type == YAML_SEQUENCE_START_EVENT;
	size_t line = event->start_mark.line;
	bool block = list ? event->data.sequence_start.style == YAML_BLOCK_SEQUENCE_STYLE
			  : event->data.mapping_start.style == YAML_BLOCK_MAPPING_STYLE;

	if (list ? event->data.sequence_start.anchor : event->data.mapping_start.anchor)
		return refuse(r, line, "anchors (&name) are not supported");
	if (list ? event->data.sequence_start.tag : event->data.mapping_start.tag)
		return refuse(r, line, "tags (!name) are not supported");
	if (r->word && block)
		return refuse(r, line, "write a list as [a, b], a map as {a: b}, a text in quotes");
	if (depth >= STK_TREE_DEPTH_MAX)
		return refuse(r, line, "nested more than 32 deep");
	return 0;
}
static_assert(STK_TREE_DEPTH_MAX == 32, "the message above says so");

/* @event stays the caller's. */
static int read_value(struct reader *r, const yaml_event_t *event, unsigned depth,
		      struct stk_tree **ret)
{
	_cleanup_(stk_freep) char *place = place_of(r, event->start_mark.line);
	_cleanup_(stk_tree_freep) struct stk_tree *node = NULL;
	bool list = event->type == YAML_SEQUENCE_START_EVENT;
	int e;

	if (!place)
		return stk_err_set(r->err, -ENOMEM, "%s: no memory", r->name);
	if (event->type == YAML_ALIAS_EVENT)
		return refuse(r, event->start_mark.line,
			      "aliases (*name) are not supported; a text that starts with * needs "
			      "quotes");
	if (event->type == YAML_SCALAR_EVENT)
		return read_scalar(r, place, event, ret);
	e = check_collection(r, event, depth);
	if (e < 0)
		return e;
	e = stk__tree_node(&r->build, list ? STK_TREE_LIST : STK_TREE_MAP, place, &node, r->err);
	if (e < 0)
		return e;
	e = read_children(r, depth + 1, node);
	if (e < 0)
		return e;
	*ret = STK_STEAL(node);
	return 0;
}

/* The events around one document; *ret stays NULL when there is none. */
static int read_stream(struct reader *r, struct stk_tree **ret)
{
	for (;;) {
		yaml_event_t event;
		yaml_event_type_t type;
		int e = next(r, &event);

		if (e < 0)
			return e;
		type = event.type;
		if (type == YAML_DOCUMENT_START_EVENT && *ret)
			e = refuse(r, event.start_mark.line, "only one document is allowed");
		else if (type == YAML_DOCUMENT_START_EVENT &&
			 event.data.document_start.tag_directives.start !=
				 event.data.document_start.tag_directives.end)
			e = refuse(r, event.start_mark.line, "tags (%TAG) are not supported");
		else if (type != YAML_STREAM_START_EVENT && type != YAML_STREAM_END_EVENT &&
			 type != YAML_DOCUMENT_START_EVENT && type != YAML_DOCUMENT_END_EVENT)
			e = read_value(r, &event, 0, ret);
		yaml_event_delete(&event);
		if (e < 0 || type == YAML_STREAM_END_EVENT)
			return e;
	}
}

static int read_text(struct reader *r, const char *text, size_t size, struct stk_tree **ret)
{
	_cleanup_(stk_tree_freep) struct stk_tree *tree = NULL;
	int e;

	r->text = text;
	r->size = size;
	if (!yaml_parser_initialize(&r->parser))
		return stk_err_set(r->err, -ENOMEM, "%s: no memory", r->name);
	yaml_parser_set_encoding(&r->parser, YAML_UTF8_ENCODING);
	yaml_parser_set_input_string(&r->parser, (const unsigned char *)text, size);
	e = read_stream(r, &tree);
	yaml_parser_delete(&r->parser);
	if (e < 0)
		return e;
	if (!tree) { /* nothing but comments */
		_cleanup_(stk_freep) char *place = place_of(r, 0);

		if (!place)
			return stk_err_set(r->err, -ENOMEM, "%s: no memory", r->name);
		return stk__tree_node(&r->build, STK_TREE_NULL, place, ret, r->err);
	}
	*ret = STK_STEAL(tree);
	return 0;
}

int stk_tree_from_yaml(const char *name, const char *text, size_t size, struct stk_tree **ret,
		       struct stk_err *err)
{
	struct reader r = {.name = name, .err = err};

	return read_text(&r, text, size, ret);
}

static ssize_t read_file(int fd, char *buffer, size_t room)
{
	size_t size = 0;

	while (size < room) {
		ssize_t n = read(fd, buffer + size, room - size);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		size += (size_t)n;
	}
	return (ssize_t)size;
}

int stk_tree_from_yaml_file(const char *path, struct stk_tree **ret, struct stk_err *err)
{
	_cleanup_(stk_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
	_cleanup_(stk_freep) char *text = NULL;
	ssize_t n;

	if (fd < 0)
		return stk_err_set(err, -errno, "%s: cannot be opened: %m", path);
	text = malloc(STK_TREE_FILE_MAX + 1);
	if (!text)
		return stk_err_set(err, -ENOMEM, "%s: no memory", path);
	n = read_file(fd, text, STK_TREE_FILE_MAX + 1);
	if (n < 0)
		return stk_err_set(err, (int)n, "%s: cannot be read: %s", path, strerror((int)-n));
	if (n > (ssize_t)STK_TREE_FILE_MAX)
		return stk_err_set(err, -E2BIG, "%s: larger than %u bytes", path,
				   STK_TREE_FILE_MAX);
	return stk_tree_from_yaml(path, text, (size_t)n, ret, err);
}

/* In a shell word " #" is hardly ever meant as the start of a YAML comment. */
static bool has_comment(const char *value)
{
	return !strchr("[{\"'", *value) && (strstr(value, " #") || strstr(value, "\t#"));
}

static int read_word(struct stk_tree_build *build, struct stk_tree *map, const char *word,
		     struct stk_err *err)
{
	const char *equals = strchr(word, '=');
	struct stk_tree *child = NULL;
	_cleanup_(stk_freep) char *key = NULL;
	struct reader r = {.build = *build, .word = true, .err = err};
	char place[80];
	int e;

	snprintf(place, sizeof(place), "word '%.60s%s'", word, strlen(word) > 60 ? "..." : "");
	r.name = place;
	if (!equals || equals == word)
		return stk_err_set(err, -EINVAL, "%s: expected KEY=VALUE", place);
	key = strndup(word, (size_t)(equals - word));
	if (!key)
		return stk_err_set(err, -ENOMEM, "%s: no memory", place);
	e = stk__tree_check_key(map, place, key, strlen(key), err);
	if (e < 0)
		return e;
	if (strchr(equals, '\n') || strchr(equals, '\r'))
		return stk_err_set(err, -EINVAL, "%s: a value must be one line", place);
	if (has_comment(equals + 1))
		return stk_err_set(err, -EINVAL,
				   "%s: \" #\" starts a comment, put the value in quotes", place);
	e = read_text(&r, equals + 1, strlen(equals + 1), &child);
	*build = r.build;
	return e < 0 ? e : stk__tree_add(build, map, key, child, err);
}

int stk_tree_from_words(char *const *words, size_t nwords, struct stk_tree **ret,
			struct stk_err *err)
{
	_cleanup_(stk_tree_freep) struct stk_tree *map = NULL;
	struct stk_tree_build build = {0};
	int e = stk__tree_node(&build, STK_TREE_MAP, "words", &map, err);

	for (size_t i = 0; !e && i < nwords; i++)
		e = read_word(&build, map, words[i], err);
	if (e < 0)
		return e;
	*ret = STK_STEAL(map);
	return 0;
}
