/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A key table in words: units, what is allowed, entries of the man page and of the commented
 * config. One source, so that text and parser cannot disagree. No state, any thread.
 */
#include "proto/keys_text.h"

#include <inttypes.h>
#include <string.h>

struct unit {
	const char *suffix;
	uint64_t factor;
};

/* Largest first of each kind: unit_text() takes the first that divides. */
static const struct unit sizes[] = {
	{"EiB", UINT64_C(1) << 60},
	{"TiB", UINT64_C(1) << 40},
	{"GiB", 1 << 30},
	{"MiB", 1 << 20},
	{"KiB", 1 << 10},
	{"", 1},
	{"B", 1},
	{"TB", UINT64_C(1000000000000)},
	{"GB", 1000000000},
	{"MB", 1000000},
	{"kB", 1000},
	{"KB", 1000},
};
static const struct unit durations[] = {{"h", 3600000}, {"min", 60000}, {"s", 1000}, {"ms", 1}};

static bool scaled(const char *text, const struct unit *units, size_t n, uint64_t *ret)
{
	uint64_t v = 0;
	const char *p = text;

	for (; *p >= '0' && *p <= '9'; p++)
		if (stk_mul_overflow(v, 10u, &v) || stk_add_overflow(v, (uint64_t)(*p - '0'), &v))
			return false;
	if (p == text)
		return false;
	for (size_t i = 0; i < n; i++)
		if (!strcmp(p, units[i].suffix))
			return !stk_mul_overflow(v, units[i].factor, ret);
	return false;
}

bool stk__keys_size(const char *text, uint64_t *ret)
{
	return scaled(text, sizes, STK_ARRAY_SIZE(sizes), ret);
}

bool stk__keys_duration(const char *text, uint64_t *ret_ms)
{
	return scaled(text, durations, STK_ARRAY_SIZE(durations), ret_ms);
}

bool stk__keys_is_plain(const char *text)
{
	size_t left = strlen(text);

	while (left) {
		size_t n = stk_utf8_next(text, left);

		if (!n || (unsigned char)*text < ' ' || *text == 0x7f)
			return false;
		text += n;
		left -= n;
	}
	return true;
}

static const char *unit_text(uint64_t v, const struct unit *units, char out[32])
{
	while (v ? v % units->factor != 0 : units->factor != 1)
		units++; /* ends: each kind has a factor of 1 */
	snprintf(out, 32, "%" PRIu64 "%s", v / units->factor, units->suffix);
	return out;
}

static void names_text(const char *const *names, char out[STK_KEYS_TEXT])
{
	size_t used = 0;

	*out = '\0';
	for (size_t i = 0; names[i] && used < STK_KEYS_TEXT; i++)
		used += (size_t)snprintf(out + used, STK_KEYS_TEXT - used, "%s%s",
					 !i             ? ""
					 : names[i + 1] ? ", "
							: " or ",
					 names[i]);
}

void stk__keys_allowed(const struct stk_key *key, char out[STK_KEYS_TEXT])
{
	char min[32], max[32];

	*out = '\0';
	switch (key->type) {
	case STK_KEY_U32:
	case STK_KEY_U64:
		snprintf(out, STK_KEYS_TEXT, "a whole number from %" PRIu64 " to %" PRIu64 "%s%s%s",
			 key->min, key->max, key->unit ? " (" : "", key->unit ? key->unit : "",
			 key->unit ? ")" : "");
		break;
	case STK_KEY_SIZE:
		snprintf(out, STK_KEYS_TEXT,
			 "a size from %s to %s (in B, KiB, MiB, GiB, TiB or kB, MB, GB, TB)",
			 unit_text(key->min, sizes, min), unit_text(key->max, sizes, max));
		break;
	case STK_KEY_DURATION:
		snprintf(out, STK_KEYS_TEXT, "a time from %s to %s (in ms, s, min or h)",
			 unit_text(key->min, durations, min), unit_text(key->max, durations, max));
		break;
	case STK_KEY_BOOL:
		snprintf(out, STK_KEYS_TEXT, "true or false");
		break;
	case STK_KEY_ENUM:
		names_text(key->names, out);
		break;
	case STK_KEY_STRING:
		snprintf(out, STK_KEYS_TEXT,
			 "a text of %" PRIu64 " to %" PRIu64 " bytes without control characters",
			 key->min, key->max);
		break;
	case STK_KEY_CUSTOM:
		break;
	}
}

/* Underscores and stars of keys and help are not scdoc's markup. */
static void put_scd(const char *text, FILE *out)
{
	for (; *text; text++) {
		if (strchr("_*\\", *text))
			fputc('\\', out);
		fputc(*text, out);
	}
}

static void print_scd(const struct stk_key *key, const char *allowed, FILE *out)
{
	fputc('*', out);
	put_scd(key->name, out);
	fputs("*\n\t", out);
	put_scd(key->help, out);
	fputs(".", out);
	if (*allowed) {
		fputs(" Allowed: ", out);
		put_scd(allowed, out);
		fputs(".", out);
	}
	if (key->default_text) {
		fputs(" Default: ", out);
		put_scd(key->default_text, out);
		fputs(".", out);
	}
	if (key->flags & STK_KEY_REQUIRED)
		fputs(" Required.", out);
	fputs("\n\n", out);
}

static void print_yaml(const struct stk_key *key, const char *allowed, FILE *out)
{
	fprintf(out, "# %s\n", key->help);
	if (*allowed)
		fprintf(out, "# %s\n", allowed);
	fprintf(out, "#%s:%s%s\n\n", key->name, key->default_text ? " " : "",
		key->default_text ? key->default_text : "");
}

void stk_keys_print(const struct stk_key_table *table, const char *format, FILE *out)
{
	bool scd = !strcmp(format, "scd");

	for (size_t i = 0; i < table->nkeys; i++) {
		char allowed[STK_KEYS_TEXT];

		stk__keys_allowed(&table->keys[i], allowed);
		(scd ? print_scd : print_yaml)(&table->keys[i], allowed, out);
	}
}
