/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/stream.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/log.h"

static int open_dataset(struct stkd_stream *s, const struct stkd_shard_limits *limits,
			struct stkd_progress *progress, struct stk_err *err)
{
	const char *paths[STK_SPEC_DATA_MAX];

	if (!s->spec->ndata)
		return stk_err_set(
			err, -EINVAL,
			"data: missing; it names the shards (a directory, file or glob)");
	for (size_t i = 0; i < s->spec->ndata; i++)
		paths[i] = s->spec->data[i].path;
	return stkd_dataset_open_list(paths, (uint32_t)s->spec->ndata, s->spec->length,
				      s->spec->length2, limits, progress, &s->dataset, err);
}

/* Of the largest batch of a class, in any width it may have. */
static int lay_out(const struct stkd_stream *s, const struct stkd_class *class,
		   struct stkd_layout *ret)
{
	uint32_t segments = class->rows * s->row_segments;

	return s->row_segments ? stkd_assembly_layout_packed(s->assembly, class->rows,
							     class->width_max, segments, ret)
			       : stkd_assembly_layout(s->assembly, class->rows, class->width_max,
						      class->width2_max, ret);
}

/* The slot holds the largest class. */
static int size_slots(struct stkd_stream *s, struct stk_err *err)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), largest = 0;
	const struct stkd_class *classes;
	struct stkd_layout *layout;
	uint32_t n;
	int r = 0;

	layout = malloc(sizeof(*layout));
	if (!layout)
		return stk_err_set(err, -ENOMEM, "out of memory");
	classes = stkd_plan_classes(s->plan, &n);
	s->row_segments = stkd_plan_counts(s->plan)->row_segments;
	for (uint32_t i = 0; i < n && !r; i++) {
		r = lay_out(s, &classes[i], layout);
		if (r < 0) {
			stk_err_set(err, r,
				    "a batch of %" PRIu32 " rows of %" PRIu32 " is too large",
				    classes[i].rows, classes[i].width_max);
			break;
		}
		largest = STK_MAX(largest, layout->size);
		s->rows_max = STK_MAX(s->rows_max, classes[i].rows);
	}
	free(layout);
	s->slot_size = stk_align_up(STK_MAX(largest, 1), page);
	return r;
}

/* Keys of the second length only where there is one. */
static json_t *class_json(const struct stkd_class *class)
{
	json_t *object =
		json_pack("{s:I, s:I, s:I, s:I, s:I}", "edge", (json_int_t) class->edge, "rows",
			  (json_int_t) class->rows, "width_min", (json_int_t) class->width_min,
			  "width_max", (json_int_t) class->width_max, "width_multiple",
			  (json_int_t) class->width_multiple);

	if (!class->edge2)
		return object;
	json_object_set_new(object, "edge2", json_integer(class->edge2));
	json_object_set_new(object, "width2_min", json_integer(class->width2_min));
	json_object_set_new(object, "width2_max", json_integer(class->width2_max));
	return object;
}

static json_t *classes_json(const struct stkd_stream *s)
{
	const struct stkd_class *classes;
	json_t *list = json_array();
	uint32_t n;

	classes = stkd_plan_classes(s->plan, &n);
	for (uint32_t i = 0; i < n; i++)
		json_array_append_new(list, class_json(&classes[i]));
	return list;
}

static json_t *counts_json(const struct stkd_stream *s)
{
	const struct stkd_plan_counts *c = stkd_plan_counts(s->plan);
	const struct {
		const char *name;
		uint64_t value;
	} counts[] = {
		{"samples", c->samples},
		{"delivered", c->delivered},
		{"overlong_dropped", c->overlong_dropped},
		{"truncated", c->truncated},
		{"promoted", c->promoted},
		{"filtered", c->filtered},
		{"unused", c->unused},
		{"repeated", c->repeated},
		{"tail_dropped", c->tail_dropped},
		{"masked", c->masked},
		{"steps", c->varies ? 0 : c->steps},
		{"real_tokens", c->real_tokens},
		{"padded_tokens", c->padded_tokens},
		{"shortest", c->shortest},
		{"longest", c->longest},
		{"max_length", c->max_length},
		{"rows", c->rows},
		{"rows_least", c->rows_least},
		{"segments", c->segments},
		{"row_segments", c->row_segments},
		{"split", c->split},
		{"empty", c->empty},
	};
	json_t *object = json_object();

	for (size_t i = 0; i < STK_ARRAY_SIZE(counts); i++)
		json_object_set_new(object, counts[i].name,
				    json_integer((json_int_t)counts[i].value));
	return object;
}

static int make_schema(struct stkd_stream *s, const char *job, struct stk_err *err)
{
	char fingerprint[33], digest[33];
	json_t *schema;

	stk_hex_encode(s->dataset->fingerprint.bytes, 16, fingerprint);
	stk_hex_encode(s->digest.bytes, 16, digest);
	schema = json_pack("{s:s, s:s, s:o, s:o, s:o, s:I, s:s, s:s, s:I, s:I, s:o}", "stream",
			   s->spec->name ? s->spec->name : "", "job", job, "fields",
			   stkd_assembly_schema(s->assembly), "classes", classes_json(s), "counts",
			   counts_json(s), "epochs", (json_int_t)s->spec->epochs, "fingerprint",
			   fingerprint, "digest", digest, "seed", (json_int_t)s->spec->seed,
			   "world", (json_int_t)s->world, "spec", stk_spec_to_json(s->spec));
	if (schema)
		s->schema = json_dumps(schema, JSON_COMPACT);
	json_decref(schema);
	return s->schema ? 0 : stk_err_set(err, -ENOMEM, "out of memory");
}

/* Most likely the length field is the wrong one, and nobody would notice. */
static void warn_of_equal_lengths(const struct stkd_stream *s)
{
	const struct stkd_plan_counts *counts = stkd_plan_counts(s->plan);

	if (s->spec->group != STK_GROUP_BUCKET || s->spec->nedges || s->spec->buckets < 2 ||
	    counts->samples < 2 || counts->shortest != counts->longest)
		return;
	log_warn("%s: all samples have length %" PRIu32 " (%s), so buckets change nothing",
		 s->dataset->path, counts->longest,
		 s->dataset->fields[s->dataset->length_field].name);
}

/* A sample longer than the largest class never reaches the assembly uncut. */
static int open_parts(struct stkd_stream *s, const char *job,
		      const struct stkd_shard_limits *limits, struct stkd_progress *progress,
		      struct stk_err *err)
{
	struct stkd_lengths lengths;
	int r = open_dataset(s, limits, progress, err);

	if (r < 0)
		return r;
	lengths = (struct stkd_lengths){
		.len = s->dataset->lengths,
		.count = s->dataset->count,
		.second = s->dataset->lengths2,
		.first = s->dataset->starts,
		.ndatasets = s->dataset->ndatasets,
	};
	atomic_store_explicit(&progress->stage, "planning", memory_order_relaxed);
	r = stkd_plan_new(s->spec, &lengths, s->world, &s->plan, err);
	if (r < 0)
		return r;
	warn_of_equal_lengths(s);
	r = stkd_assembly_new(s->spec, s->dataset, stkd_plan_counts(s->plan)->max_length,
			      &s->assembly, err);
	if (r < 0)
		return r;
	r = size_slots(s, err);
	if (r < 0)
		return r;
	r = stk_spec_digest(s->spec, &s->digest);
	if (r < 0)
		return stk_err_set(err, r, "out of memory");
	r = stkd_stream_take_start(s, err);
	if (r < 0)
		return r;
	return make_schema(s, job, err);
}

int stkd_stream_open(struct stk_spec *spec, const char *job, uint32_t world,
		     const struct stkd_shard_limits *limits, struct stkd_progress *progress,
		     struct stkd_stream **ret, struct stk_err *err)
{
	_cleanup_(stkd_stream_unrefp) struct stkd_stream *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return stk_err_set(err, -ENOMEM, "out of memory");
	atomic_store_explicit(&s->refs, 1, memory_order_relaxed);
	s->world = world;
	s->spec = spec;
	r = open_parts(s, job, limits, progress, err);
	if (r < 0) {
		s->spec = NULL; /* stays the caller's */
		return r;
	}
	*ret = STK_STEAL(s);
	return 0;
}

struct stkd_stream *stkd_stream_ref(struct stkd_stream *s)
{
	/* Relaxed: whoever copies a reference holds one already. */
	atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
	return s;
}

struct stkd_stream *stkd_stream_unref(struct stkd_stream *s)
{
	/* acq_rel: the last one sees all that others did with it. */
	if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1)
		return NULL;
	stkd_assembly_free(s->assembly);
	stkd_plan_free(s->plan);
	stkd_dataset_free(s->dataset);
	stk_spec_free(s->spec);
	free(s->schema);
	free(s);
	return NULL;
}
