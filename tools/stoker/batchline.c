/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/stoker/batchline.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "proto/base.h"
#include "proto/dtype.h"

static void print_double(FILE *out, double value, int digits)
{
	if (isnan(value))
		fputs("\"nan\"", out);
	else if (isinf(value))
		fputs(value < 0 ? "\"-inf\"" : "\"inf\"", out);
	else
		fprintf(out, "%.*g", digits, value);
}

static float f32_at(const uint8_t *p)
{
	float value;

	memcpy(&value, p, sizeof(value));
	return value;
}

static float from_bits(uint32_t bits)
{
	return f32_at((const uint8_t *)&bits);
}

static float from_f16(uint16_t h)
{
	uint32_t exponent = h >> 10 & 31, mantissa = h & 1023;
	float sign = h >> 15 ? -1.0f : 1.0f;

	if (exponent == 31)
		return mantissa ? NAN : sign * INFINITY;
	if (!exponent)
		return sign * ldexpf((float)mantissa, -24);
	return sign * ldexpf((float)(mantissa + 1024), (int)exponent - 25);
}

#define PRINT_INT(type, format)                                                                    \
	do {                                                                                       \
		type value_;                                                                       \
		memcpy(&value_, p, sizeof(value_));                                                \
		fprintf(out, "%" format, value_);                                                  \
	} while (0)

/* Floats get as many digits as their precision needs. */
static void print_float(FILE *out, uint32_t element, const uint8_t *p)
{
	uint16_t half;
	double wide;

	memcpy(&half, p, sizeof(half));
	switch (element) {
	case STK_F16:
		print_double(out, from_f16(half), 5);
		break;
	case STK_BF16:
		print_double(out, from_bits((uint32_t)half << 16), 4);
		break;
	case STK_F32:
		print_double(out, f32_at(p), 9);
		break;
	case STK_F64:
		memcpy(&wide, p, sizeof(wide));
		print_double(out, wide, 17);
		break;
	default: /* STK_C64 */
		putc('[', out);
		print_double(out, f32_at(p), 9);
		putc(',', out);
		print_double(out, f32_at(p + 4), 9);
		putc(']', out);
	}
}

static void print_element(FILE *out, uint32_t element, const uint8_t *p)
{
	switch (element) {
	case STK_BOOL:
		fputs(*p ? "true" : "false", out);
		break;
	case STK_U8:
	case STK_F8_E4M3:
	case STK_F8_E5M2:
		PRINT_INT(uint8_t, PRIu8);
		break;
	case STK_I8:
		PRINT_INT(int8_t, PRId8);
		break;
	case STK_U16:
		PRINT_INT(uint16_t, PRIu16);
		break;
	case STK_I16:
		PRINT_INT(int16_t, PRId16);
		break;
	case STK_U32:
		PRINT_INT(uint32_t, PRIu32);
		break;
	case STK_I32:
		PRINT_INT(int32_t, PRId32);
		break;
	case STK_U64:
		PRINT_INT(uint64_t, PRIu64);
		break;
	case STK_I64:
		PRINT_INT(int64_t, PRId64);
		break;
	default:
		print_float(out, element, p);
	}
}

/* Prints one dimension; *p moves over the elements. */
static void print_array(FILE *out, const struct stk_tensor *t, uint32_t dim, const uint8_t **p)
{
	if (dim == t->ndim) {
		print_element(out, t->element, *p);
		*p += stk_dtype_size((enum stk_dtype)t->element);
		return;
	}
	putc('[', out);
	for (uint64_t i = 0; i < t->shape[dim]; i++) {
		if (i)
			putc(',', out);
		print_array(out, t, dim + 1, p);
	}
	putc(']', out);
}

static void print_string(FILE *out, const char *text)
{
	putc('"', out);
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			putc('\\', out);
		if ((unsigned char)*text < ' ')
			fprintf(out, "\\u%04x", (unsigned)*text);
		else
			putc(*text, out);
	}
	putc('"', out);
}

static void print_data(FILE *out, const struct stk_batch *batch, const struct stk_batch_info *info)
{
	fputs(",\"lengths\":[", out);
	for (uint32_t i = 0; i < info->nids; i++)
		fprintf(out, "%s%" PRIu32, i ? "," : "", info->lengths[i]);
	fputs("],\"data\":{", out);
	for (uint32_t i = 0; i < stk_batch_ntensors(batch); i++) {
		struct stk_tensor tensor;
		const uint8_t *p;

		if (stk_batch_tensor_at(batch, i, &tensor) < 0)
			break;
		if (i)
			putc(',', out);
		print_string(out, tensor.name);
		putc(':', out);
		p = tensor.data;
		print_array(out, &tensor, 0, &p);
	}
	putc('}', out);
}

/* Packed rows: of each a list of its segments, [sample, first element, length]. */
static void print_segments(FILE *out, const struct stk_batch_info *b)
{
	fputs(",\"segments\":[", out);
	for (uint32_t row = 0; row < b->rows; row++) {
		fputs(row ? ",[" : "[", out);
		for (uint32_t s = b->row_first[row]; s < b->row_first[row + 1] && s < b->nids; s++)
			fprintf(out, "%s[%" PRIu64 ",%" PRIu32 ",%" PRIu32 "]",
				s > b->row_first[row] ? "," : "", b->sample_ids[s],
				b->segment_from[s], b->lengths[s]);
		putc(']', out);
	}
	putc(']', out);
}

void batchline_print(FILE *out, const struct stk_batch *batch, bool data)
{
	struct stk_batch_info b = {.size = sizeof(b)};

	stk_batch_info(batch, &b);
	fprintf(out,
		"{\"kind\":\"batch\",\"epoch\":%" PRIu64 ",\"step\":%" PRIu64 ",\"micro\":%" PRIu32
		",\"class\":%" PRIu32 ",\"edge\":%" PRIu32 ",\"rows\":%" PRIu32
		",\"rows_real\":%" PRIu32 ",\"width\":%" PRIu32 ",\"real_tokens\":%" PRIu64
		",\"padded_tokens\":%" PRIu64 ",\"sample_ids\":[",
		b.epoch, b.step, b.micro, b.shape_class, b.edge, b.rows, b.rows_real, b.width,
		b.real_tokens, b.padded_tokens);
	for (uint32_t i = 0; i < b.nids; i++) {
		if (i)
			putc(',', out);
		if (b.sample_ids[i] == STK_ROW_EMPTY)
			fputs("null", out);
		else
			fprintf(out, "%" PRIu64, b.sample_ids[i]);
	}
	putc(']', out);
	if (b.row_first)
		print_segments(out, &b);
	if (data)
		print_data(out, batch, &b);
	fputs("}\n", out);
}
