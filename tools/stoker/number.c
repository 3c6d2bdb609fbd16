/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/stoker/number.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool number_dtype_known(enum stk_dtype dtype)
{
	return stk_dtype_class(dtype) != STK_DTYPE_IS_OTHER;
}

static int refuse(const json_t *value, enum stk_dtype dtype, struct stk_err *err)
{
	_cleanup_(stk_freep) char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
	const char *name = stk_dtype_name(dtype);

	if (!text)
		return stk_err_set(err, -ENOMEM, "no memory");
	switch (stk_dtype_class(dtype)) {
	case STK_DTYPE_IS_INT:
		return stk_err_set(err, json_is_integer(value) ? -ERANGE : -EINVAL,
				   "%.60s is not an integer from %" PRIi64 " to %" PRIi64 " (%s)",
				   text, stk_dtype_min(dtype), stk_dtype_max(dtype), name);
	case STK_DTYPE_IS_BOOL:
		return stk_err_set(err, -EINVAL, "%.60s is not true, false, 0 or 1 (%s)", text,
				   name);
	default:
		return stk_err_set(err, json_is_number(value) ? -ERANGE : -EINVAL,
				   "%.60s is not a number that %s can hold (up to %s)", text, name,
				   dtype == STK_DTYPE_F16    ? "65504"
				   : dtype == STK_DTYPE_F64  ? "1.797e308"
				   : dtype == STK_DTYPE_BF16 ? "3.389e38"
							     : "3.402e38");
	}
}

/* Rounds a finite double once, to nearest even, to a 16-bit float; false when it would be infinite. */
static bool narrow(double value, int exponent_bits, int mantissa_bits, uint16_t *ret)
{
	int bias = (1 << (exponent_bits - 1)) - 1, shift = 52 - mantissa_bits;
	uint64_t bits, mantissa, rest, half, q;
	int exponent;

	memcpy(&bits, &value, sizeof(bits));
	*ret = (uint16_t)(bits >> 63 << 15);
	exponent = (int)(bits >> 52 & 0x7ff) - 1023;
	mantissa = (bits & ((1ull << 52) - 1)) | 1ull << 52;
	if (exponent < 1 - bias)
		shift += 1 - bias - exponent; /* subnormal in the target */
	if (shift > 53)
		return true; /* less than half of the smallest subnormal: zero */
	q = mantissa >> shift;
	rest = mantissa & ((1ull << shift) - 1);
	half = 1ull << (shift - 1);
	if (rest > half || (rest == half && q & 1))
		q++; /* a carry runs into the exponent, as it should */
	if (exponent >= 1 - bias)
		q += (uint64_t)(exponent + bias - 1) << mantissa_bits;
	if (q >= (uint64_t)((1 << exponent_bits) - 1) << mantissa_bits)
		return false;
	*ret |= (uint16_t)q;
	return true;
}

static bool put_float(double value, enum stk_dtype dtype, void *out)
{
	float single = (float)value;
	uint16_t half;

	switch (dtype) {
	case STK_DTYPE_F64:
		memcpy(out, &value, sizeof(value));
		return true;
	case STK_DTYPE_F32:
		memcpy(out, &single, sizeof(single));
		return isfinite(single);
	case STK_DTYPE_F16:
		if (!narrow(value, 5, 10, &half))
			return false;
		break;
	default:
		if (!narrow(value, 8, 7, &half))
			return false;
		break;
	}
	memcpy(out, &half, sizeof(half));
	return true;
}

int number_put(const json_t *value, enum stk_dtype dtype, void *out, struct stk_err *err)
{
	int64_t n;

	if (stk_dtype_class(dtype) == STK_DTYPE_IS_FLOAT) {
		if (!json_is_number(value) || !put_float(json_number_value(value), dtype, out))
			return refuse(value, dtype, err);
		return 0;
	}
	if (json_is_integer(value))
		n = json_integer_value(value);
	else if (json_is_boolean(value) && dtype == STK_DTYPE_BOOL)
		n = json_is_true(value);
	else
		return refuse(value, dtype, err);
	if (n < stk_dtype_min(dtype) || n > stk_dtype_max(dtype))
		return refuse(value, dtype, err);
	memcpy(out, &n, stk_dtype_size(dtype)); /* the low bytes: both machines are little-endian */
	return 0;
}
