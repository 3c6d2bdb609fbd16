/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the drawing: two panels of fixed size, numbers scaled into them. One thread.
 */
#include "tools/stoker/plot.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
	WIDTH = 860,
	LEFT = 70,
	RIGHT = 30,
	TOP = 60,
	PANEL = 260, /* height of the histogram */
	ROW = 26,    /* of one policy */
	NAME = 120,
	BINS = 80,
	LABELS_MIN = 34 /* pixels between the labels of two edges */
};

struct plot {
	FILE *out;
	const struct stkd_histogram *h;
	uint64_t bins[BINS], most;
	uint32_t longest;
};

static double x_of(const struct plot *p, double length)
{
	return LEFT + length / p->longest * (WIDTH - LEFT - RIGHT);
}

/* Text may come from a file's name. */
static void put_escaped(FILE *out, const char *text)
{
	for (; *text; text++) {
		if (*text == '<' || *text == '>' || *text == '&' || *text == '"')
			fprintf(out, "&#%d;", *text);
		else if ((unsigned char)*text >= ' ')
			fputc(*text, out);
	}
}

static void fill_bins(struct plot *p)
{
	for (size_t i = 0; i < p->h->n; i++) {
		uint64_t bin = (uint64_t)p->h->length[i] * BINS / ((uint64_t)p->longest + 1);

		p->bins[bin < BINS ? bin : BINS - 1] += p->h->count[i];
	}
	for (int b = 0; b < BINS; b++)
		p->most = STK_MAX(p->most, p->bins[b]);
}

static void draw_bars(const struct plot *p)
{
	double width = (double)(WIDTH - LEFT - RIGHT) / BINS;

	for (int b = 0; b < BINS; b++) {
		double height = (double)p->bins[b] / (double)p->most * PANEL;

		if (p->bins[b])
			fprintf(p->out,
				"<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
				"class=\"bar\"/>\n",
				LEFT + b * width, TOP + PANEL - height, width - 1, height);
	}
}

static void draw_axes(const struct plot *p)
{
	fprintf(p->out, "<path d=\"M%d %dV%dH%d\" class=\"axis\"/>\n", LEFT, TOP, TOP + PANEL,
		WIDTH - RIGHT);
	fprintf(p->out, "<text x=\"%d\" y=\"%d\" class=\"end\">%" PRIu64 "</text>\n", LEFT - 6,
		TOP + 10, p->most);
	fprintf(p->out, "<text x=\"%d\" y=\"%d\" class=\"end\">0</text>\n", LEFT - 6, TOP + PANEL);
	fprintf(p->out, "<text x=\"%d\" y=\"%d\" class=\"end\">samples</text>\n", LEFT - 6,
		TOP + PANEL / 2);
	fprintf(p->out,
		"<text x=\"%d\" y=\"%d\" class=\"mid\">length; lines: edges of the plan's "
		"buckets</text>\n",
		(WIDTH + LEFT - RIGHT) / 2, TOP + PANEL + 38);
}

/* Labels of edges that stand too close to the one before are left out; the last one stays. */
static void draw_edges(const struct plot *p, const struct stkd_class *classes, uint32_t n)
{
	double last = -LABELS_MIN, end = n ? x_of(p, classes[n - 1].edge) : 0;

	for (uint32_t i = 0; i < n; i++) {
		double x = x_of(p, classes[i].edge);
		bool room = x - last >= LABELS_MIN && (i + 1 == n || end - x >= LABELS_MIN);

		if (i && classes[i].edge == classes[i - 1].edge)
			continue;
		fprintf(p->out, "<path d=\"M%.1f %dV%d\" class=\"edge\"/>\n", x, TOP - 4,
			TOP + PANEL + 4);
		if (!room && i + 1 < n)
			continue;
		fprintf(p->out, "<text x=\"%.1f\" y=\"%d\" class=\"mid\">%" PRIu32 "</text>\n", x,
			TOP + PANEL + 18, classes[i].edge);
		last = x;
	}
}

static void draw_policies(const struct plot *p, const struct policy *policies, int n)
{
	int y = TOP + PANEL + 80;
	double room = WIDTH - RIGHT - LEFT - NAME - 60;

	fprintf(p->out,
		"<text x=\"%d\" y=\"%d\" class=\"head\">padding, share of all tokens</text>\n",
		LEFT, y);
	for (int i = 0; i < n; i++) {
		double padding = policy_padding(policies[i].real, policies[i].padded);

		y += ROW;
		fprintf(p->out, "<text x=\"%d\" y=\"%d\" class=\"end\">", LEFT + NAME - 10, y);
		put_escaped(p->out, policies[i].name);
		fprintf(p->out,
			"</text><rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" "
			"class=\"pad\"/>"
			"<text x=\"%.1f\" y=\"%d\">%.1f %%</text>\n",
			LEFT + NAME, y - 12, padding * room + 0.5, ROW - 10,
			LEFT + NAME + padding * room + 8, y, 100 * padding);
	}
}

static void draw(struct plot *p, const char *title, const struct stkd_class *classes,
		 uint32_t nclasses, const struct policy *policies, int npolicies)
{
	int height = TOP + PANEL + 100 + ROW * npolicies;

	fprintf(p->out,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 "
		"0 "
		"%d %d\">\n<style>text{font:12px sans-serif;fill:#222}.end{text-anchor:end}"
		".mid{text-anchor:middle}.head{font-weight:bold}.bar{fill:#7aa6c2}"
		".pad{fill:#c8875a}.axis{fill:none;stroke:#444}"
		".edge{stroke:#b03030;stroke-dasharray:4 3}</style>\n"
		"<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
		"<text x=\"%d\" y=\"28\" class=\"head\" style=\"font-size:15px\">",
		WIDTH, height, WIDTH, height, LEFT);
	put_escaped(p->out, title);
	fputs("</text>\n", p->out);
	draw_bars(p);
	draw_axes(p);
	draw_edges(p, classes, nclasses);
	draw_policies(p, policies, npolicies);
	fputs("</svg>\n", p->out);
}

int plot_write(const char *path, const char *title, const struct stkd_histogram *lengths,
	       const struct stkd_class *classes, uint32_t nclasses, const struct policy *policies,
	       int npolicies, struct stk_err *err)
{
	uint32_t last = nclasses ? classes[nclasses - 1].edge : 1;
	struct plot p = {.h = lengths};

	p.longest = STK_MAX(lengths->length[lengths->n - 1], last);
	p.out = fopen(path, "w");
	if (!p.out)
		return stk_err_set(err, -errno, "--plot: %s: %m", path);
	fill_bins(&p);
	draw(&p, title, classes, nclasses, policies, npolicies);
	if (ferror(p.out) | fclose(p.out)) {
		stk_err_set(err, -EIO, "--plot: %s: cannot be written", path);
		unlink(path);
		return -EIO;
	}
	return 0;
}
