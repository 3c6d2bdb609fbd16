/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements to text and JSON. No state; any thread.
 */
#include "tools/stoker/values.h"

#include <endian.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ELEMENT_TEXT 64

static uint64_t load(const uint8_t *at, size_t size)
{
	uint64_t bits = 0;

	memcpy(&bits, at, STK_MIN(size, sizeof(bits)));
	return le64toh(bits);
}

static int64_t load_int(enum stk_dtype dtype, const uint8_t *at)
{
	uint64_t bits = load(at, stk_dtype_size(dtype));

	switch (dtype) {
	case STK_DTYPE_I8:
		return (int8_t)bits;
	case STK_DTYPE_I16:
		return (int16_t)bits;
	case STK_DTYPE_I32:
		return (int32_t)bits;
	default: /* U64 is the caller's care */
		return (int64_t)bits;
	}
}

static double half(uint16_t bits)
{
	unsigned exponent = bits >> 10 & 31, fraction = bits & 1023;
	double value;

	if (exponent == 31)
		value = fraction ? NAN : INFINITY;
	else
		value = exponent ? ldexp(1024 + fraction, (int)exponent - 25)
				 : ldexp(fraction, -24);
	return bits >> 15 ? -value : value;
}

static double load_float(enum stk_dtype dtype, const uint8_t *at)
{
	uint64_t bits = load(at, stk_dtype_size(dtype));
	uint32_t low = (uint32_t)bits;
	double wide;
	float value;

	if (dtype == STK_DTYPE_F16)
		return half((uint16_t)bits);
	if (dtype == STK_DTYPE_F64) {
		memcpy(&wide, &bits, sizeof(wide));
		return wide;
	}
	if (dtype == STK_DTYPE_BF16)
		low <<= 16;
	memcpy(&value, &low, sizeof(value));
	return value;
}

/* Shortest text that reads back as the same number of that type. */
static void format_float(enum stk_dtype dtype, double value, char out[ELEMENT_TEXT])
{
	bool wide = dtype == STK_DTYPE_F64;

	for (int digits = wide ? 15 : 6; digits <= (wide ? 17 : 9); digits++) {
		snprintf(out, ELEMENT_TEXT, "%.*g", digits, value);
		if (wide ? strtod(out, NULL) == value : strtof(out, NULL) == (float)value)
			return;
	}
}

static void format(enum stk_dtype dtype, const uint8_t *at, char out[ELEMENT_TEXT])
{
	size_t size = stk_dtype_size(dtype), used;

	switch (stk_dtype_class(dtype)) {
	case STK_DTYPE_IS_BOOL:
		strcpy(out, *at ? "true" : "false");
		return;
	case STK_DTYPE_IS_INT:
		if (dtype == STK_DTYPE_U64)
			snprintf(out, ELEMENT_TEXT, "%" PRIu64, load(at, size));
		else
			snprintf(out, ELEMENT_TEXT, "%" PRId64, load_int(dtype, at));
		return;
	case STK_DTYPE_IS_FLOAT:
		format_float(dtype, load_float(dtype, at), out);
		return;
	default:
		used = (size_t)sprintf(out, "0x");
		for (size_t i = 0; i < STK_MAX(size, (size_t)1); i++)
			used += (size_t)sprintf(out + used, "%02x", at[i]);
	}
}

/* Bytes from one element to the next; types without whole bytes are shown byte by byte. */
static size_t step(enum stk_dtype dtype)
{
	return STK_MAX(stk_dtype_size(dtype), (size_t)1);
}

static json_t *element_json(enum stk_dtype dtype, const uint8_t *at)
{
	enum stk_dtype_class class = stk_dtype_class(dtype);
	char text[ELEMENT_TEXT];

	if (class == STK_DTYPE_IS_BOOL)
		return json_boolean(*at);
	if (class == STK_DTYPE_IS_INT && (dtype != STK_DTYPE_U64 || load(at, 8) <= INT64_MAX))
		return json_integer(load_int(dtype, at));
	if (class == STK_DTYPE_IS_FLOAT && isfinite(load_float(dtype, at)))
		return json_real(load_float(dtype, at));
	format(dtype, at, text);
	return json_string(text);
}

json_t *values_json(enum stk_dtype dtype, const void *data, uint64_t n)
{
	json_t *array = json_array();

	for (uint64_t i = 0; array && i < n; i++)
		if (json_array_append_new(
			    array, element_json(dtype, (const uint8_t *)data + i * step(dtype)))) {
			json_decref(array);
			return NULL;
		}
	return array;
}

static void print_more(FILE *out, uint64_t n, uint64_t shown)
{
	if (n > shown)
		fprintf(out, "%s... (%" PRIu64 " more)", shown ? " " : "", n - shown);
}

void values_print(FILE *out, enum stk_dtype dtype, const void *data, uint64_t n, uint64_t shown)
{
	char text[ELEMENT_TEXT];

	fputc('[', out);
	for (uint64_t i = 0; i < STK_MIN(n, shown); i++) {
		format(dtype, (const uint8_t *)data + i * step(dtype), text);
		fprintf(out, "%s%s", i ? ", " : "", text);
	}
	if (n > shown)
		fputc(',', out);
	print_more(out, n, shown);
	fputc(']', out);
}

/* An id of text as a byte, or -1 for an id that is none. */
static int text_byte(enum stk_dtype dtype, const void *data, uint64_t i)
{
	const uint8_t *at = (const uint8_t *)data + i * step(dtype);
	uint64_t id = dtype == STK_DTYPE_U64 ? load(at, 8) : (uint64_t)load_int(dtype, at);

	return id < 256 ? (int)id : -1;
}

static void print_id(FILE *out, enum stk_dtype dtype, const void *data, uint64_t i)
{
	char text[ELEMENT_TEXT];

	format(dtype, (const uint8_t *)data + i * step(dtype), text);
	fprintf(out, "<%s>", text);
}

/* Bytes of the character that starts at element i; 0: none, or one bad for a terminal. */
static size_t character(enum stk_dtype dtype, const void *data, uint64_t n, uint64_t i, char out[4])
{
	size_t have = 0, size;

	while (have < STK_MIN(n - i, (uint64_t)4)) {
		int byte = text_byte(dtype, data, i + have);

		if (byte < 0)
			break;
		out[have++] = (char)byte;
	}
	size = have ? stk_utf8_next(out, have) : 0;
	if (size == 1 && ((unsigned char)*out < ' ' || *out == '\x7f'))
		return 0;
	if (size == 2 && out[0] == '\xc2' && (unsigned char)out[1] < 0xa0)
		return 0; /* C1 controls */
	return size;
}

void values_print_text(FILE *out, enum stk_dtype dtype, const void *data, uint64_t n,
		       uint64_t shown)
{
	uint64_t i = 0;

	fputc('"', out);
	while (i < STK_MIN(n, shown)) {
		char c[4];
		size_t size = character(dtype, data, n, i, c);
		int byte = text_byte(dtype, data, i);

		if (size == 1 && (*c == '"' || *c == '\\'))
			fprintf(out, "\\%c", *c);
		else if (size)
			fwrite(c, 1, size, out);
		else if (byte == '\n')
			fputs("\\n", out);
		else if (byte == '\t')
			fputs("\\t", out);
		else if (byte >= 0)
			fprintf(out, "\\x%02x", (unsigned)byte);
		else
			print_id(out, dtype, data, i);
		i += size ? size : 1;
	}
	fputc('"', out);
	print_more(out, n, i);
}

json_t *values_json_text(enum stk_dtype dtype, const void *data, uint64_t n)
{
	_cleanup_(stk_freep) char *text = malloc((size_t)n + 1);

	for (uint64_t i = 0; text && i < n; i++) {
		int byte = text_byte(dtype, data, i);

		if (byte < 0)
			return NULL;
		text[i] = (char)byte;
	}
	return text ? json_stringn(text, (size_t)n) : NULL;
}
