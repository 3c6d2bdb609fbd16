/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/stoker/benchreport.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *name; /* in JSON */
	const char *label, *unit;
	double scale; /* from the value to the unit that is printed */
	int digits;
} figures[BENCH_NFIGURES] = {
	[BENCH_SAMPLES] = {"samples_per_s", "samples", "k/s", 1e-3, 1},
	[BENCH_REAL] = {"real_tokens_per_s", "real tokens", "M/s", 1e-6, 1},
	[BENCH_PADDED] = {"padded_tokens_per_s", "padded tokens", "M/s", 1e-6, 1},
	[BENCH_GB] = {"bytes_per_s", "written", "GB/s", 1e-9, 2},
	[BENCH_PADDING] = {"padding", "padding", "%", 100, 1},
	[BENCH_NEXT_P50] = {"next_p50_ns", "next() p50", "us", 1e-3, 2},
	[BENCH_NEXT_P99] = {"next_p99_ns", "next() p99", "us", 1e-3, 2},
	[BENCH_NEXT_P999] = {"next_p999_ns", "next() p99.9", "us", 1e-3, 2},
	[BENCH_READY_P50] = {"ready_p50_ns", "next() + release(), ready, p50", "ns", 1, 0},
	[BENCH_WAKE_P50] = {"wake_p50_ns", "wake-up from an empty ring p50", "us", 1e-3, 1},
	[BENCH_WAKE_P99] = {"wake_p99_ns", "wake-up from an empty ring p99", "us", 1e-3, 1},
	[BENCH_FUTEX_P50] = {"futex_p50_ns", "a bare futex, other core, p50", "us", 1e-3, 1},
	[BENCH_FUTEX_ONE_P50] = {"futex_one_core_p50_ns", "a bare futex, same core, p50", "us",
				 1e-3, 1},
	[BENCH_WAKE_RATIO] = {"wake_ratio", "  wake-up / bare futex", "", 1, 2},
	[BENCH_FIRST] = {"first_batch_s", "time to the first batch", "s", 1, 3},
	[BENCH_CPU_DAEMON] = {"daemon_cpu_s_per_mtok", "daemon CPU per M tokens", "ms", 1e3, 2},
	[BENCH_CPU_CLIENT] = {"client_cpu_s_per_mtok", "client CPU per M tokens", "ms", 1e3, 2},
	[BENCH_MEM_ANON] = {"daemon_anon_bytes", "daemon memory, its own", "MiB", 0x1p-20, 1},
	[BENCH_MEM_SHARED] = {"daemon_shared_bytes", "daemon memory, slots", "MiB", 0x1p-20, 1},
	[BENCH_MEM_FILE] = {"daemon_file_bytes", "daemon memory, page cache", "MiB", 0x1p-20, 1},
	[BENCH_MEM_CLIENT] = {"client_anon_bytes", "client memory, its own", "MiB", 0x1p-20, 1},
	[BENCH_BARE_ONE] = {"bare_one_bytes_per_s", "best bare loop, one core", "GB/s", 1e-9, 2},
	[BENCH_BARE_ALL] = {"bare_all_bytes_per_s", "best bare loop, all cores", "GB/s", 1e-9, 2},
	[BENCH_ASSEMBLY_ONE] = {"assembly_one_bytes_per_s", "assembly alone, one core", "GB/s",
				1e-9, 2},
	[BENCH_ASSEMBLY_ALL] = {"assembly_all_bytes_per_s", "assembly alone, all cores", "GB/s",
				1e-9, 2},
	[BENCH_RATIO_BARE_ONE] = {"ratio_bare_one", "  written / bare, one core", "", 1, 2},
	[BENCH_RATIO_BARE_ALL] = {"ratio_bare_all", "  written / bare, all cores", "", 1, 2},
	[BENCH_RATIO_CPU] = {"ratio_cpu", "  written / bare, by daemon CPU", "", 1, 2},
	[BENCH_RATIO_ASSEMBLY_ONE] = {"ratio_assembly_one", "  assembly / bare, one core", "", 1,
				      2},
	[BENCH_RATIO_ASSEMBLY_ALL] = {"ratio_assembly_all", "  assembly / bare, all cores", "", 1,
				      2},
};

void benchreport_add(struct benchreport *report, enum bench_figure figure, double value)
{
	if (report->n[figure] < BENCH_ROUNDS_MAX && isfinite(value))
		report->values[figure][report->n[figure]++] = value;
}

static int by_value(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* Median, least and most. False: there is no value. */
static bool summarise(const struct benchreport *report, enum bench_figure figure, double ret[3])
{
	double sorted[BENCH_ROUNDS_MAX];
	unsigned n = report->n[figure];

	if (!n)
		return false;
	memcpy(sorted, report->values[figure], n * sizeof(sorted[0]));
	qsort(sorted, n, sizeof(sorted[0]), by_value);
	ret[0] = n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
	ret[1] = sorted[0];
	ret[2] = sorted[n - 1];
	return true;
}

void benchreport_print(const struct benchreport *report, FILE *out)
{
	double v[3];

	fprintf(out,
		"%s: %u rank%s, %u seat%s each, %u rounds of %g s; median, least and most of "
		"them\n",
		report->what, report->ranks, report->ranks == 1 ? "" : "s", report->replicas,
		report->replicas == 1 ? "" : "s", report->n[BENCH_GB], report->seconds);
	for (int i = 0; i < BENCH_NFIGURES; i++) {
		double scale = figures[i].scale;
		int digits = figures[i].digits;

		if (!summarise(report, (enum bench_figure)i, v))
			continue;
		fprintf(out, "  %-32s %12.*f %-5s", figures[i].label, digits, v[0] * scale,
			figures[i].unit);
		if (report->n[i] > 1)
			fprintf(out, " (%.*f to %.*f)", digits, v[1] * scale, digits, v[2] * scale);
		fputc('\n', out);
	}
	if (report->limit)
		fprintf(out, "  no bare loop for this stream: %s\n", report->limit);
	else
		fprintf(out, "  all cores: %u; one core is one thread, wherever it runs\n",
			report->cores);
}

int benchreport_print_json(const struct benchreport *report, FILE *out)
{
	json_t *list = json_object(), *json;
	double v[3];
	int r;

	for (int i = 0; i < BENCH_NFIGURES; i++)
		if (summarise(report, (enum bench_figure)i, v))
			json_object_set_new(list, figures[i].name,
					    json_pack("{s:f, s:f, s:f}", "median", v[0], "min",
						      v[1], "max", v[2]));
	json = json_pack("{s:s, s:i, s:i, s:i, s:i, s:f, s:s?, s:o}", "what", report->what, "ranks",
			 (int)report->ranks, "replicas", (int)report->replicas, "cores",
			 (int)report->cores, "rounds", (int)report->n[BENCH_GB], "seconds",
			 report->seconds, "no_limit", report->limit, "figures", list);
	r = json ? json_dumpf(json, out, JSON_COMPACT | JSON_REAL_PRECISION(6)) : -1;
	fputc('\n', out);
	json_decref(json);
	return r < 0 || ferror(out) ? -EIO : 0;
}

static json_t *load(const char *path)
{
	json_error_t error;
	json_t *json = json_load_file(path, 0, &error);

	if (json && json_is_object(json_object_get(json, "figures")))
		return json;
	if (json)
		fprintf(stderr, "stoker bench: %s: no output of stoker bench --json\n", path);
	else
		fprintf(stderr, "stoker bench: %s:%d: %s\n", path, error.line, error.text);
	json_decref(json);
	return NULL;
}

static void print_ratio(json_t *a, json_t *b, int i, FILE *out)
{
	double x, y, scale = figures[i].scale;
	int digits = figures[i].digits;

	a = json_object_get(json_object_get(json_object_get(a, "figures"), figures[i].name),
			    "median");
	b = json_object_get(json_object_get(json_object_get(b, "figures"), figures[i].name),
			    "median");
	if (!json_is_number(a) || !json_is_number(b))
		return;
	x = json_number_value(a);
	y = json_number_value(b);
	fprintf(out, "  %-32s %12.*f %12.*f %-5s", figures[i].label, digits, x * scale, digits,
		y * scale, figures[i].unit);
	if (x != 0)
		fprintf(out, " %8.3f", y / x);
	fputc('\n', out);
}

int benchreport_compare(const char *path_a, const char *path_b, FILE *out)
{
	json_t *a = load(path_a), *b = load(path_b);
	int r = a && b ? 0 : -EINVAL;

	if (r == 0)
		fprintf(out, "  %-32s %12s %12s %-5s %8s\n", "median", "A", "B", "", "B / A");
	for (int i = 0; i < BENCH_NFIGURES && r == 0; i++)
		print_ratio(a, b, i, out);
	json_decref(a);
	json_decref(b);
	return r;
}
