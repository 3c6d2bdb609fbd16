/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/stoker/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define REDRAW_NS 100000000ull
#define BAR_MAX   30u

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

char *progress_size(uint64_t bytes, char text[PROGRESS_SIZE_MAX])
{
	static const char *const units[] = {"kB", "MB", "GB", "TB", "PB"};
	double value = (double)bytes / 1000;
	size_t unit = 0;

	if (bytes < 1000) {
		snprintf(text, PROGRESS_SIZE_MAX, "%" PRIu64 " B", bytes);
		return text;
	}
	for (; value >= 999.95 && unit + 1 < STK_ARRAY_SIZE(units); unit++)
		value /= 1000;
	snprintf(text, PROGRESS_SIZE_MAX, "%.1f %s", value, units[unit]);
	return text;
}

static unsigned terminal_width(void)
{
	struct winsize size;

	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) < 0 || !size.ws_col)
		return 80;
	return size.ws_col;
}

/* "  [####    ]  52 %  ETA 0:07" in what room the line has left. */
static void format_share(char *text, size_t size, unsigned room, double share, double left_s)
{
	char tail[48], bar[BAR_MAX + 1];
	unsigned width, full, left;
	int n;

	left = left_s < 359999 ? (unsigned)left_s : 359999; /* 100 hours: who knows */
	n = snprintf(tail, sizeof(tail), "  %3.0f %%  ETA %u:%02u", share * 100, left / 60,
		     left % 60);
	width = room > (unsigned)n + 4 ? STK_MIN(room - (unsigned)n - 4, BAR_MAX) : 0;
	if (width < 5) {
		snprintf(text, size, "%s", tail);
		return;
	}
	full = (unsigned)(share * width);
	memset(bar, ' ', width);
	memset(bar, '#', full);
	bar[width] = '\0';
	snprintf(text, size, "  [%s]%s", bar, tail);
}

void progress_format(char *line, size_t size, unsigned width, const struct progress *progress,
		     uint64_t items, uint64_t bytes, uint64_t elapsed_ns)
{
	double seconds = (double)STK_MAX(elapsed_ns, (uint64_t)1) / 1e9,
	       rate = (double)bytes / seconds;
	char done[PROGRESS_SIZE_MAX], speed[PROGRESS_SIZE_MAX];
	size_t used;

	snprintf(line, size, "%" PRIu64 " %s  %s  %s/s", items, progress->noun,
		 progress_size(bytes, done), progress_size((uint64_t)rate, speed));
	used = strlen(line);
	if (progress->total && bytes <= progress->total && bytes && used < width)
		format_share(line + used, size - used, width - (unsigned)used,
			     (double)bytes / (double)progress->total,
			     (double)(progress->total - bytes) / rate);
	/* A line that wraps could not be taken away again. */
	if (strlen(line) > width)
		line[width] = '\0';
}

void progress_begin(struct progress *progress, const char *noun, uint64_t total_bytes)
{
	*progress = (struct progress){
		.shown = isatty(STDERR_FILENO),
		.noun = noun,
		.total = total_bytes,
		.start_ns = now_ns(),
	};
}

void progress_update(struct progress *progress, uint64_t items, uint64_t bytes)
{
	char line[256];
	unsigned width;
	uint64_t now;

	if (!progress->shown)
		return;
	now = now_ns();
	if (now - STK_MAX(progress->drawn_ns, progress->start_ns) < REDRAW_NS)
		return;
	progress->drawn_ns = now;
	width = terminal_width() - 1; /* the last column would wrap on some terminals */
	progress_format(line, sizeof(line), STK_MIN(width, (unsigned)sizeof(line) - 1), progress,
			items, bytes, now - progress->start_ns);
	fprintf(stderr, "\r%s\033[K", line);
	fflush(stderr);
}

void progress_end(struct progress *progress)
{
	if (progress->drawn_ns) {
		fputs("\r\033[K", stderr);
		fflush(stderr);
	}
	progress->drawn_ns = 0;
	progress->shown = false;
}

uint64_t progress_elapsed_ns(const struct progress *progress)
{
	return now_ns() - progress->start_ns;
}
