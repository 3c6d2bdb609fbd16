/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WARNINGS_MAX 32

static enum stkd_log_level shown = STKD_LOG_INFO;
static bool journal;

static pthread_mutex_t warnings_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	char kind[32];
	char text[480];
} warnings[WARNINGS_MAX];
static unsigned nwarnings;

void stkd_log_init(enum stkd_log_level level)
{
	shown = level;
	journal = getenv("JOURNAL_STREAM") != NULL;
}

void stkd_log(enum stkd_log_level level, const char *fmt, ...)
{
	static const char *const names[] = {[STKD_LOG_ERROR] = "error: ",
					    [STKD_LOG_WARN] = "warning: ",
					    [STKD_LOG_INFO] = "",
					    [STKD_LOG_DEBUG] = "debug: "};
	int saved = errno;
	char line[1400];
	size_t used;
	va_list ap;
	int n;

	if (level > shown)
		return;
	n = journal ? snprintf(line, sizeof(line), "<%d>", (int)level)
		    : snprintf(line, sizeof(line), "stokerd: %s", names[level]);
	used = (size_t)n;
	errno = saved;
	va_start(ap, fmt);
	n = vsnprintf(line + used, sizeof(line) - used - 1, fmt, ap);
	va_end(ap);
	used = STK_MIN(used + (n < 0 ? 0 : (size_t)n), sizeof(line) - 2);
	line[used++] = '\n';
	/* One write for each line, so that lines of threads do not mix; a full disk is not our death. */
	if (write(STDERR_FILENO, line, used) < 0)
		errno = saved;
	errno = saved;
}

void stkd_warn_once(void *unused, const char *kind, const char *text)
{
	bool fresh = true;

	(void)unused;
	pthread_mutex_lock(&warnings_lock);
	for (unsigned i = 0; i < nwarnings; i++)
		if (!strcmp(warnings[i].kind, kind))
			fresh = false;
	if (nwarnings == WARNINGS_MAX)
		fresh = false;
	if (fresh) {
		snprintf(warnings[nwarnings].kind, sizeof(warnings[0].kind), "%s", kind);
		snprintf(warnings[nwarnings].text, sizeof(warnings[0].text), "%s", text);
		nwarnings++;
	}
	pthread_mutex_unlock(&warnings_lock);
	if (fresh)
		log_warn("%s", text);
}

const char *stkd_warning_at(unsigned i)
{
	const char *text;

	pthread_mutex_lock(&warnings_lock);
	text = i < nwarnings ? warnings[i].text : NULL;
	pthread_mutex_unlock(&warnings_lock);
	return text;
}
