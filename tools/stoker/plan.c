/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `stoker plan`: what a spec makes of a dataset: lengths, padding by policy, shape classes, and the
 * recipes of steps. Reads lengths only, never samples. One thread.
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/stoker/commands.h"
#include "tools/stoker/lengths.h"
#include "tools/stoker/packing.h"
#include "tools/stoker/planoptions.h"
#include "tools/stoker/planspec.h"
#include "tools/stoker/plot.h"
#include "tools/stoker/policy.h"
#include "tools/stoker/sequence.h"

/* All that is known about a plan before anything is printed. */
struct report {
	const struct plan_options *options;
	const struct stk_spec *spec;
	const struct lengths *lengths;
	const struct stkd_plan *plan;
	struct policy policies[POLICIES_MAX];
	int npolicies;
	/* Epoch `options->epoch` as it is delivered. */
	uint64_t real, padded, at_edges; /* tokens; of both lengths where there are two */
	bool packed;
	struct packing packing; /* of packed rows */
	char hash[33];
	double plan_s, epoch_s;
};

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int fail(const struct stk_err *err, int status)
{
	fprintf(stderr, "stoker plan: %s\n", err->text);
	return status;
}

static int parse_spec(const struct plan_options *o, struct stk_spec **ret, struct stk_err *err)
{
	_cleanup_(stk_spec_freep) struct stk_spec *spec = NULL;
	int r = planspec_read(o->spec, o->words, o->nwords, &spec, err);

	if (r < 0)
		return r;
	if (!o->spec && spec->ndata)
		return stk_err_set(err, -EINVAL, "data: give the path as a word of its own, PATH");
	if (o->spec && !o->lengths && !spec->ndata)
		return stk_err_set(err, -EINVAL, "%s: data is missing", o->spec);
	*ret = STK_STEAL(spec);
	return 0;
}

/* Rows of all parts, masked ones included. */
static uint64_t step_rows(const struct stk_spec *spec, uint64_t world, const struct stkd_step *step)
{
	return step->rows_part ? (uint64_t)step->rows_part * world * spec->accumulate : step->nids;
}

/* The second length of a step's samples, and what its rows take of it. */
static void add_second(struct report *report, const struct stkd_step *step, uint64_t rows)
{
	struct stkd_lengths lengths = lengths_for_plan(report->lengths);
	const struct stkd_class *classes;
	uint32_t n;

	classes = stkd_plan_classes(report->plan, &n);
	for (uint32_t i = 0; i < step->nids; i++)
		report->real += STK_MIN(lengths.second[step->ids[i]], classes[n - 1].edge2);
	report->padded += rows * step->width2;
	report->at_edges += rows * ((uint64_t)classes[step->shape_class].edge +
				    classes[step->shape_class].edge2);
}

/* Sums up one epoch; pad_to longest depends on which samples meet. */
static int walk_epoch(struct report *report, struct stk_err *err)
{
	_cleanup_(stkd_iter_freep) struct stkd_iter *iter = NULL;
	_cleanup_(sequence_freep) struct sequence *sequence = sequence_new();
	struct stkd_step step = {0};
	int r = sequence ? stkd_iter_new(report->plan, NULL, 0, &iter, err)
			 : stk_err_set(err, -ENOMEM, "no memory for a hash");

	if (r == 0)
		r = stkd_iter_seek(iter, report->options->epoch, 0, err);
	/* An epoch without end is looked at for as long as its samples would last. */
	uint64_t left = stkd_plan_counts(report->plan)->samples;

	while (r == 0 && !step.last_of_epoch && left) {
		uint64_t rows;

		r = stkd_iter_next(iter, &step);
		if (r < 0)
			return stk_err_set(err, r, "no memory for the samples of a step");
		if (report->spec->stop == STK_STOP_NEVER)
			left -= STK_MIN(left, (uint64_t)step.nids);
		rows = step_rows(report->spec, report->options->world, &step);
		sequence_add(sequence, &step, rows);
		report->real += step.real_tokens;
		report->padded += rows * step.width;
		if (step.width2)
			add_second(report, &step, rows);
		report->packed = step.segments != NULL;
		if (report->packed)
			packing_add(&report->packing, report->plan, report->spec,
				    (uint32_t)report->options->world, &step);
	}
	if (!step.width2)
		report->at_edges = stkd_plan_counts(report->plan)->padded_tokens;
	if (r == 0)
		sequence_text(sequence, report->hash);
	return r;
}

/* The length that a share of the samples does not exceed. */
static uint32_t percentile(const struct stkd_histogram *h, uint64_t count, unsigned percent)
{
	uint64_t rank = count / 100 * percent + (count % 100 * percent + 99) / 100, seen = 0;
	size_t i = 0;

	for (; i + 1 < h->n; i++) {
		seen += h->count[i];
		if (seen >= rank)
			break;
	}
	return h->length[i];
}

static const unsigned percents[] = {1, 10, 25, 50, 75, 90, 99};

static int find_percentiles(const struct lengths *lengths, uint32_t ret[STK_ARRAY_SIZE(percents)],
			    struct stk_err *err)
{
	struct stkd_histogram h = {0};
	int r = stkd_histogram_new(lengths->len, lengths->count, &h);

	if (r < 0)
		return stk_err_set(err, r, "no memory for a histogram of lengths");
	for (size_t i = 0; i < STK_ARRAY_SIZE(percents); i++)
		ret[i] = percentile(&h, lengths->count, percents[i]);
	stkd_histogram_deinit(&h);
	return 0;
}

static void print_policy(const struct policy *p)
{
	printf("  %-14s %7.1f %% %8zu ", p->name, 100 * policy_padding(p->real, p->padded),
	       p->nedges);
	if (p->steps)
		printf("%8" PRIu64 " ", p->steps);
	else
		printf("%8s ", "refused");
	for (size_t i = 0; i < p->nedges; i++)
		if (p->edges2[i])
			printf(" %" PRIu32 "/%" PRIu32, p->edges[i], p->edges2[i]);
		else
			printf(" %" PRIu32, p->edges[i]);
	putchar('\n');
}

static void print_lost(const struct stkd_plan_counts *c)
{
	if (c->filtered)
		printf("  %" PRIu64 " samples left out by keep\n", c->filtered);
	if (c->unused)
		printf("  %" PRIu64 " samples not drawn in an epoch\n", c->unused);
	if (c->repeated)
		printf("  %" PRIu64 " draws of samples that the epoch drew before\n", c->repeated);
	if (c->truncated)
		printf("  %" PRIu64 " samples cut to %" PRIu32 "\n", c->truncated, c->max_length);
	if (c->overlong_dropped)
		printf("  %" PRIu64 " samples longer than %" PRIu32 " dropped\n",
		       c->overlong_dropped, c->max_length);
	if (c->tail_dropped)
		printf("  %" PRIu64 " samples dropped at the end of each epoch\n", c->tail_dropped);
	if (c->promoted)
		printf("  %" PRIu64 " samples move to a larger bucket at the end of each epoch\n",
		       c->promoted);
	if (c->masked)
		printf("  %" PRIu64 " masked rows in the last step\n", c->masked);
}

/* What is planned, for people. */
static const char *name_of(const struct plan_options *o)
{
	return o->path ? o->path : o->lengths ? o->lengths : o->spec;
}

static void print_class(uint32_t b, const struct stkd_class *c)
{
	printf("  class %" PRIu32 ": %" PRIu32 " rows, width %" PRIu32 "..%" PRIu32, b, c->rows,
	       c->width_min, c->width_max);
	if (c->edge2)
		printf(", second width %" PRIu32 "..%" PRIu32, c->width2_min, c->width2_max);
	putchar('\n');
}

static void print_text(const struct report *r, const uint32_t *percentiles)
{
	const struct stkd_plan_counts *c = stkd_plan_counts(r->plan);
	const char *path = name_of(r->options);
	const struct stkd_class *classes;
	uint32_t nclasses;

	printf("%s: %" PRIu64 " samples, %" PRIu64 " tokens\n", path, c->samples,
	       r->lengths->tokens);
	printf("lengths: %" PRIu32, c->shortest);
	for (size_t i = 0; i < STK_ARRAY_SIZE(percents); i++)
		printf(", %u %% %" PRIu32, percents[i], percentiles[i]);
	printf(", longest %" PRIu32 "\n\n", c->longest);
	printf("  each sample as wide as its edge\n");
	printf("  %-14s %9s %8s %8s  %s\n", "policy", "padding", "classes", "steps", "edges");
	for (int i = 0; i < r->npolicies; i++)
		print_policy(&r->policies[i]);
	printf("\nthis spec, world %" PRIu64 ": %" PRIu64 " steps an epoch, %" PRIu64
	       " samples delivered\n",
	       r->options->world, r->packed ? r->packing.steps : c->steps, c->delivered);
	print_lost(c);
	if (r->packed)
		packing_print(stdout, &r->packing, r->plan, (uint32_t)r->options->world);
	else
		printf("  padding delivered in epoch %" PRIu64
		       ": %.1f %% (%.1f %% at pad_to: edge)\n",
		       r->options->epoch, 100 * policy_padding(r->real, r->padded),
		       100 * policy_padding(r->real, r->at_edges));
	classes = stkd_plan_classes(r->plan, &nclasses);
	for (uint32_t b = 0; b < nclasses; b++)
		print_class(b, &classes[b]);
	printf("  recipes of epoch %" PRIu64 ": hash %s\n", r->options->epoch, r->hash);
}

static json_t *edges_json(const struct policy *p)
{
	json_t *edges = json_array();

	for (size_t i = 0; i < p->nedges; i++)
		json_array_append_new(edges, p->edges2[i]
						     ? json_pack("[I, I]", (json_int_t)p->edges[i],
								 (json_int_t)p->edges2[i])
						     : json_integer(p->edges[i]));
	return edges;
}

static json_t *policies_json(const struct report *r)
{
	json_t *list = json_array();

	for (int i = 0; i < r->npolicies; i++) {
		const struct policy *p = &r->policies[i];

		json_array_append_new(
			list, json_pack("{s:s, s:f, s:I, s:I, s:I, s:I, s:o}", "name", p->name,
					"padding", policy_padding(p->real, p->padded),
					"real_tokens", (json_int_t)p->real, "padded_tokens",
					(json_int_t)p->padded, "classes", (json_int_t)p->nedges,
					"steps", (json_int_t)p->steps, "edges", edges_json(p)));
	}
	return list;
}

static json_t *class_json(const struct stkd_class *c)
{
	json_t *object = json_pack("{s:I, s:I, s:I, s:I, s:I}", "edge", (json_int_t)c->edge, "rows",
				   (json_int_t)c->rows, "width_min", (json_int_t)c->width_min,
				   "width_max", (json_int_t)c->width_max, "width_multiple",
				   (json_int_t)c->width_multiple);

	if (!c->edge2)
		return object;
	json_object_set_new(object, "edge2", json_integer(c->edge2));
	json_object_set_new(object, "width2_min", json_integer(c->width2_min));
	json_object_set_new(object, "width2_max", json_integer(c->width2_max));
	return object;
}

static json_t *classes_json(const struct stkd_plan *plan)
{
	json_t *list = json_array();
	uint32_t n;
	const struct stkd_class *c = stkd_plan_classes(plan, &n);

	for (uint32_t b = 0; b < n; b++)
		json_array_append_new(list, class_json(&c[b]));
	return list;
}

static json_t *epoch_json(const struct report *r)
{
	const struct stkd_plan_counts *c = stkd_plan_counts(r->plan);

	return json_pack(
		"{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f}",
		"hash", r->hash, "filtered", (json_int_t)c->filtered, "unused",
		(json_int_t)c->unused, "repeated", (json_int_t)c->repeated, "epoch",
		(json_int_t)r->options->epoch, "steps",
		(json_int_t)(r->packed ? r->packing.steps : c->steps), "delivered",
		(json_int_t)c->delivered, "truncated", (json_int_t)c->truncated, "overlong_dropped",
		(json_int_t)c->overlong_dropped, "tail_dropped", (json_int_t)c->tail_dropped,
		"promoted", (json_int_t)c->promoted, "masked", (json_int_t)c->masked, "real_tokens",
		(json_int_t)r->real, "padded_tokens", (json_int_t)r->padded, "padding",
		policy_padding(r->real, r->padded), "padding_at_edges",
		policy_padding(r->real, r->at_edges));
}

static int print_object(json_t *json)
{
	int r = json ? json_dumpf(json, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6)) : -1;

	json_decref(json);
	putchar('\n');
	return r;
}

static int print_json(const struct report *r, const uint32_t *percentiles)
{
	const struct stkd_plan_counts *c = stkd_plan_counts(r->plan);
	json_t *lengths = json_pack("{s:I, s:I}", "shortest", (json_int_t)c->shortest, "longest",
				    (json_int_t)c->longest);
	char name[8];

	for (size_t i = 0; i < STK_ARRAY_SIZE(percents); i++) {
		snprintf(name, sizeof(name), "p%u", percents[i]);
		json_object_set_new(lengths, name, json_integer(percentiles[i]));
	}
	return print_object(json_pack(
		"{s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:i, s:f, s:f, s:o*}", "samples",
		(json_int_t)c->samples, "tokens", (json_int_t)r->lengths->tokens, "world",
		(json_int_t)r->options->world, "lengths", lengths, "policies", policies_json(r),
		"epoch", epoch_json(r), "classes", classes_json(r->plan), "spec",
		stk_spec_to_json(r->spec), "plan_version", STKD_PLAN_VERSION, "plan_seconds",
		r->plan_s, "epoch_seconds", r->epoch_s, "packing",
		r->packed ? packing_json(&r->packing, r->plan) : NULL));
}

static int write_files(const struct report *r, struct stk_err *err)
{
	const struct plan_options *o = r->options;
	struct stkd_histogram h = {0};
	const struct stkd_class *classes;
	uint32_t n;
	int e = 0;

	if (o->edges_out)
		e = planspec_write_edges(o->edges_out, r->spec, r->plan, err);
	if (e < 0 || !o->plot)
		return e;
	e = stkd_histogram_new(r->lengths->len, r->lengths->count, &h);
	if (e < 0)
		return stk_err_set(err, e, "no memory for a histogram of lengths");
	classes = stkd_plan_classes(r->plan, &n);
	e = plot_write(o->plot, name_of(o), &h, classes, n, r->policies, r->npolicies, err);
	stkd_histogram_deinit(&h);
	return e;
}

/* Are buckets asked for where every sample is as long as the others? */
static bool is_pointless(const struct report *r)
{
	const struct stkd_plan_counts *c = stkd_plan_counts(r->plan);

	return r->spec->group == STK_GROUP_BUCKET && !r->spec->nedges && r->spec->buckets > 1 &&
	       c->samples > 1 && c->shortest == c->longest;
}

static int print_report(struct report *r, struct stk_err *err)
{
	struct stkd_lengths lengths = lengths_for_plan(r->lengths);
	uint32_t percentiles[STK_ARRAY_SIZE(percents)];
	double start;
	int e = find_percentiles(r->lengths, percentiles, err);

	if (e < 0)
		return e;
	r->npolicies = policies_compare(r->spec, r->plan, &lengths, (uint32_t)r->options->world,
					r->policies, err);
	if (r->npolicies < 0)
		return r->npolicies;
	start = now_s();
	e = walk_epoch(r, err);
	if (e < 0)
		return e;
	r->epoch_s = now_s() - start;
	e = write_files(r, err);
	if (e < 0)
		return e;
	if (!r->options->json)
		print_text(r, percentiles);
	else if (print_json(r, percentiles) < 0)
		return stk_err_set(err, -EIO, "cannot write the report");
	if (is_pointless(r))
		fprintf(stderr,
			"note: all samples have length %" PRIu32
			", so buckets change nothing; is it the right length field?\n",
			stkd_plan_counts(r->plan)->longest);
	fprintf(stderr, "planned in %.3f s; an epoch of %" PRIu64 " samples in %.3f s\n", r->plan_s,
		r->lengths->count, r->epoch_s);
	return 0;
}

static void add_ids(json_t *line, const uint64_t *ids, uint32_t n)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < n; i++)
		json_array_append_new(list, json_integer((json_int_t)ids[i]));
	json_object_set_new(line, "ids", list);
}

static json_t *step_json(const struct report *r, const struct stkd_step *step)
{
	uint32_t n;
	const struct stkd_class *classes = stkd_plan_classes(r->plan, &n);

	return json_pack("{s:I, s:I, s:I, s:I, s:I}", "epoch", (json_int_t)step->epoch, "step",
			 (json_int_t)step->step, "bucket", (json_int_t)step->shape_class, "edge",
			 (json_int_t)classes[step->shape_class].edge, "width",
			 (json_int_t)step->width);
}

static int print_part(const struct report *r, const struct stkd_step *step, uint32_t micro)
{
	const struct plan_options *o = r->options;
	json_t *line = step_json(r, step);
	struct stkd_part part;

	stkd_step_part(r->plan, step, (uint32_t)o->rank, micro, &part);
	json_object_set_new(line, "rank", json_integer((json_int_t)o->rank));
	json_object_set_new(line, "micro", json_integer(micro));
	json_object_set_new(line, "rows", json_integer(part.rows));
	json_object_set_new(line, "rows_real", json_integer(part.rows_real));
	if (o->show && part.segments)
		json_object_set_new(
			line, "segments",
			packing_rows_json(part.segments, part.row_first, part.rows_real));
	else if (o->show)
		add_ids(line, part.ids, part.rows_real);
	return print_object(line);
}

static int print_step(const struct report *r, const struct stkd_step *step)
{
	json_t *line;
	int e = 0;

	for (uint32_t m = 0; r->options->one_rank && m < r->spec->accumulate && e == 0; m++)
		e = print_part(r, step, m);
	if (r->options->one_rank)
		return e;
	line = step_json(r, step);
	json_object_set_new(line, "rows",
			    json_integer((json_int_t)step_rows(r->spec, r->options->world, step)));
	json_object_set_new(line, "rows_real", json_integer(step->nids));
	json_object_set_new(line, "real_tokens", json_integer((json_int_t)step->real_tokens));
	if (r->options->show && step->segments)
		json_object_set_new(line, "segments",
				    packing_rows_json(step->segments, step->row_first, step->nids));
	else if (r->options->show)
		add_ids(line, step->ids, step->nids);
	return print_object(line);
}

static int print_steps(const struct report *r, struct stk_err *err)
{
	_cleanup_(stkd_iter_freep) struct stkd_iter *iter = NULL;
	const struct plan_options *o = r->options;
	int e = stkd_iter_new(r->plan, NULL, 0, &iter, err);

	if (e < 0)
		return e;
	e = stkd_iter_seek(iter, o->epoch, o->first, err);
	if (e < 0)
		return stk_err_prefix(err, "--steps: ");
	for (uint64_t s = o->first; s < o->end; s++) {
		struct stkd_step step;

		e = stkd_iter_next(iter, &step);
		if (e < 0)
			return stk_err_set(err, e, "no memory for the samples of a step");
		if (print_step(r, &step) < 0)
			return stk_err_set(err, -EIO, "cannot write the steps");
	}
	return 0;
}

static int print_hash(struct report *r, struct stk_err *err)
{
	int e = walk_epoch(r, err);

	if (e == 0)
		puts(r->hash);
	return e;
}

static int run(const struct plan_options *o, const struct stk_spec *spec,
	       const struct lengths *lengths, struct stk_err *err)
{
	_cleanup_(stkd_plan_freep) struct stkd_plan *plan = NULL;
	struct stkd_lengths borrowed = lengths_for_plan(lengths);
	struct report report = {.options = o, .spec = spec, .lengths = lengths};
	double start = now_s();
	int r = stkd_plan_new(spec, &borrowed, (uint32_t)o->world, &plan, err);

	if (r < 0)
		return r;
	report.plan = plan;
	report.plan_s = now_s() - start;
	r = o->steps  ? print_steps(&report, err)
	    : o->hash ? print_hash(&report, err)
		      : print_report(&report, err);
	if (r == 0 && (fflush(stdout) || ferror(stdout)))
		r = stk_err_set(err, -EIO, "cannot write: %m");
	return r;
}

int stoker_plan(int argc, char **argv)
{
	_cleanup_(stk_spec_freep) struct stk_spec *spec = NULL;
	struct lengths lengths = {0};
	struct stk_err err = {0};
	struct plan_options options;
	int r = plan_options_parse(&options, argc, argv, &err);

	if (r > 0)
		return 0;
	if (r == 0)
		r = parse_spec(&options, &spec, &err);
	if (r < 0) {
		fail(&err, 2);
		fprintf(stderr, "stoker plan --help says how\n");
		return 2;
	}
	if (options.lengths)
		r = lengths_from_file(options.lengths, &lengths, &err);
	else
		r = options.path ? lengths_from_dataset(options.path, spec, &lengths, &err)
				 : lengths_from_spec(spec, &lengths, &err);
	if (r == 0)
		r = run(&options, spec, &lengths, &err);
	lengths_deinit(&lengths);
	return r < 0 ? fail(&err, 1) : 0;
}
