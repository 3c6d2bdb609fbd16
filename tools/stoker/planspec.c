/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns how a spec comes from a file and how edges go into one. One thread.
 */
#include "tools/stoker/planspec.h"

#include <errno.h>
#include <jansson.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/plan/plan.h"

bool planspec_is_file(const char *word)
{
	const char *dot = strrchr(word, '.');

	return dot && (!strcmp(dot, ".yaml") || !strcmp(dot, ".yml"));
}

/* The stream of a configuration that has one, or the map itself. */
static int find_stream(const char *path, const struct stk_tree *tree, const struct stk_tree **ret,
		       struct stk_err *err)
{
	const struct stk_tree *streams =
		tree->type == STK_TREE_MAP ? stk_tree_get(tree, "streams") : NULL;

	*ret = tree;
	if (!streams)
		return 0;
	if (streams->type != STK_TREE_LIST || streams->nchildren != 1)
		return stk_err_set(err, -EINVAL,
				   "%s: a configuration of one stream is needed, or its keys alone",
				   path);
	*ret = streams->children[0];
	return 0;
}

static int beside(char **name, const char *dir, struct stk_err *err)
{
	char *joined;

	if (!*name || **name == '/')
		return 0;
	if (asprintf(&joined, "%s/%s", dir, *name) < 0)
		return stk_err_set(err, -ENOMEM, "no memory");
	free(*name);
	*name = joined;
	return 0;
}

static int read_file(const char *path, struct stk_spec **ret, struct stk_err *err)
{
	_cleanup_(stk_tree_freep) struct stk_tree *tree = NULL;
	_cleanup_(stk_spec_freep) struct stk_spec *spec = NULL;
	_cleanup_(stk_freep) char *copy = strdup(path);
	const struct stk_tree *map;
	int r = copy ? stk_tree_from_yaml_file(path, &tree, err) : -ENOMEM;

	if (r == 0)
		r = find_stream(path, tree, &map, err);
	if (r == 0)
		r = stk_spec_parse(NULL, map, &spec, err);
	for (size_t i = 0; r == 0 && i < spec->ndata; i++)
		r = beside(&spec->data[i].path, dirname(strcpy(copy, path)), err);
	if (r == 0)
		r = beside(&spec->edges_file, dirname(strcpy(copy, path)), err);
	if (r == 0)
		r = stk_spec_read_edges(spec, err);
	if (r < 0)
		return r;
	*ret = STK_STEAL(spec);
	return 0;
}

int planspec_read(const char *path, char *const *words, size_t nwords, struct stk_spec **ret,
		  struct stk_err *err)
{
	_cleanup_(stk_spec_freep) struct stk_spec *base = NULL;
	_cleanup_(stk_spec_freep) struct stk_spec *spec = NULL;
	_cleanup_(stk_tree_freep) struct stk_tree *tree = NULL;
	int r = path ? read_file(path, &base, err) : 0;

	if (r == 0)
		r = stk_tree_from_words(words, nwords, &tree, err);
	if (r == 0)
		r = stk_spec_parse(base, tree, &spec, err);
	if (r == 0)
		r = stk_spec_read_edges(spec, err);
	if (r < 0)
		return r;
	*ret = STK_STEAL(spec);
	return 0;
}

int planspec_write_edges(const char *path, const struct stk_spec *spec,
			 const struct stkd_plan *plan, struct stk_err *err)
{
	struct stk_spec of = {.length2 = spec->length2};
	const struct stkd_class *classes;
	json_t *json, *edges;
	uint32_t n;
	int r;

	classes = stkd_plan_classes(plan, &n);
	of.nedges = n;
	for (uint32_t i = 0; i < n; i++) {
		of.edges[i] = classes[i].edge;
		of.edges2[i] = classes[i].edge2;
	}
	edges = stk_spec_edges_json(&of);
	json = json_pack("{s:o, s:I, s:I}", "edges", edges, "multiple_of",
			 (json_int_t)spec->multiple_of, "samples",
			 (json_int_t)stkd_plan_counts(plan)->samples);
	r = json ? json_dump_file(json, path, JSON_COMPACT) : -1;
	json_decref(json);
	return r < 0 ? stk_err_set(err, -EIO, "--edges-out: %s: cannot be written", path) : 0;
}
