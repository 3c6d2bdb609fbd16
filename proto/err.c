/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* U+0000 to U+001F and U+007F to U+009F. */
static bool is_control(const char *s)
{
	unsigned char c = (unsigned char)s[0];

	return c < ' ' || c == 0x7f || (c == 0xc2 && (unsigned char)s[1] < 0xa0);
}

/*
 * Names from files and messages end up here and go to terminals and into JSON: what is not
 * printable UTF-8 becomes \xNN, and a cut never leaves half a character.
 */
static void copy_printable(char *to, size_t room, const char *from)
{
	size_t left = strlen(from);

	while (left) {
		size_t n = stk_utf8_next(from, left);
		bool plain = n && !is_control(from);
		size_t need = plain ? n : 4;

		if (need >= room)
			break;
		if (plain)
			memcpy(to, from, n);
		else
			snprintf(to, room, "\\x%02x", (unsigned char)*from);
		n = plain ? n : 1;
		from += n;
		left -= n;
		to += need;
		room -= need;
	}
	*to = '\0';
}

int stk_err_set(struct stk_err *err, int code, const char *fmt, ...)
{
	char text[sizeof(err->text)];
	va_list ap;

	if (!err)
		return code;
	err->code = code;
	va_start(ap, fmt);
	if (vsnprintf(text, sizeof(text), fmt, ap) < 0)
		text[0] = '\0';
	va_end(ap);
	copy_printable(err->text, sizeof(err->text), text);
	return code;
}

int stk_err_prefix(struct stk_err *err, const char *fmt, ...)
{
	char text[sizeof(err->text)];
	va_list ap;
	size_t used;
	int n;

	if (!err)
		return 0;
	va_start(ap, fmt);
	n = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	used = n < 0 ? 0 : STK_MIN((size_t)n, sizeof(text) - 1);
	snprintf(text + used, sizeof(text) - used, "%s", err->text);
	copy_printable(err->text, sizeof(err->text), text);
	return err->code;
}

/* Levenshtein distance of two short words; anything longer than 63 is called far. */
static unsigned distance(const char *a, const char *b)
{
	size_t la = strlen(a), lb = strlen(b);
	unsigned row[64];

	if (la > 63 || lb > 63)
		return 64;
	for (size_t j = 0; j <= lb; j++)
		row[j] = (unsigned)j;
	for (size_t i = 1; i <= la; i++) {
		unsigned diagonal = row[0];

		row[0] = (unsigned)i;
		for (size_t j = 1; j <= lb; j++) {
			unsigned change = diagonal + (a[i - 1] != b[j - 1]);
			unsigned skip = STK_MIN(row[j], row[j - 1]) + 1;

			diagonal = row[j];
			row[j] = STK_MIN(change, skip);
		}
	}
	return row[lb];
}

const char *stk_nearest(const char *word, const char *const *names)
{
	unsigned best = (unsigned)strlen(word) / 3 + 2;
	const char *found = NULL;

	for (; *names; names++) {
		unsigned d = distance(word, *names);

		if (d < best) {
			best = d;
			found = *names;
		}
	}
	return found;
}
