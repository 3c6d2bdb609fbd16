/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/assemble/chain.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

static bool is_whole_type(enum stk_dtype dtype)
{
	return stk_dtype_class(dtype) == STK_DTYPE_IS_INT ||
	       stk_dtype_class(dtype) == STK_DTYPE_IS_BOOL;
}

static bool is_float8(enum stk_dtype dtype)
{
	return dtype == STK_DTYPE_F8_E4M3 || dtype == STK_DTYPE_F8_E5M2;
}

/* Every value of the type is a float: at most 16 bits of a whole number, or a small float. */
static bool fits_f32(enum stk_dtype dtype)
{
	return stk_dtype_size(dtype) <= 2 || dtype == STK_DTYPE_F32;
}

/* Whole numbers stay whole unless there is arithmetic; floats are wide enough for both ends. */
static enum stkd_domain choose_domain(const struct stkd_chain *chain)
{
	bool whole = is_whole_type(chain->from) && is_whole_type(chain->to) && !chain->affine;

	if (whole)
		return chain->from == STK_DTYPE_U64 ? STKD_U64 : STKD_I64;
	if (!fits_f32(chain->from) || chain->to == STK_DTYPE_F64)
		return STKD_F64;
	/* 32 bits of a whole number have no place in a float. */
	return is_whole_type(chain->to) && stk_dtype_size(chain->to) > 2 ? STKD_F64 : STKD_F32;
}

static double largest(enum stk_dtype dtype)
{
	switch (dtype) {
	case STK_DTYPE_F16:
		return 65504;
	case STK_DTYPE_BF16:
		return 0x1.fep127;
	case STK_DTYPE_F32:
		return 0x1.fffffep127;
	case STK_DTYPE_F8_E4M3:
		return 448;
	case STK_DTYPE_F8_E5M2:
		return 57344;
	case STK_DTYPE_U64:
		return 0x1p64;
	default:
		return is_whole_type(dtype) ? (double)stk_dtype_max(dtype) : (double)INFINITY;
	}
}

static double smallest(enum stk_dtype dtype)
{
	return is_whole_type(dtype) ? (double)stk_dtype_min(dtype) : -largest(dtype);
}

/* Can the target hold whatever comes out of the chain? */
static bool holds_all(const struct stkd_chain *chain, const struct stk_spec_ops *ops)
{
	double low = smallest(chain->from), high = largest(chain->from);

	if (chain->to == STK_DTYPE_BOOL)
		return true;
	if (is_whole_type(chain->to) && chain->domain >= STKD_F32 && !is_whole_type(chain->from))
		return false; /* NaN */
	if (chain->affine) {
		low = -(double)INFINITY;
		high = (double)INFINITY;
	}
	if (chain->clamp) {
		low = fmax(low, ops->clamp[0]);
		high = fmin(high, ops->clamp[1]);
	}
	if (chain->modulo) {
		high = low < 0 ? (double)(chain->modulo - 1)
			       : fmin(high, (double)(chain->modulo - 1));
		low = 0;
	}
	return low >= smallest(chain->to) && high <= largest(chain->to);
}

/* IEEE says what becomes of a float that is too large, if the type has infinities. */
static bool may_be_infinite(const struct stkd_chain *chain)
{
	return !is_whole_type(chain->to) && chain->to != STK_DTYPE_F8_E4M3 &&
	       (!is_whole_type(chain->from) || chain->affine);
}

static int set_range(struct stkd_chain *chain, const struct stk_spec_ops *ops, struct stk_err *err)
{
	bool holds = holds_all(chain, ops), wrap = ops->range == STK_RANGE_WRAP;

	if (wrap && !is_whole_type(chain->to))
		return stk_err_set(err, -EINVAL, "range: wrap is for whole numbers, not for %s",
				   stk_dtype_name(chain->to));
	if (ops->range == STK_RANGE_REFUSE && !holds && !may_be_infinite(chain))
		return stk_err_set(err, -EINVAL,
				   "stored %s may lose range as %s; possible: range: error, range: "
				   "saturate%s, clamp within its range, or a wider dtype",
				   stk_dtype_name(chain->from), stk_dtype_name(chain->to),
				   is_whole_type(chain->to) ? ", range: wrap" : "");
	chain->strict = ops->range == STK_RANGE_ERROR && !holds;
	if (ops->range == STK_RANGE_REFUSE || wrap)
		chain->store = chain->casts->store[chain->domain][chain->to][STKD_WRAP];
	else
		chain->store = chain->casts->store[chain->domain][chain->to][STKD_SATURATE];
	return 0;
}

static void set_channels(struct stkd_chain *chain, const struct stk_spec_ops *ops)
{
	uint32_t n = STK_MAX(STK_MAX(ops->nscale, ops->nbias), 1);

	chain->nchannels = n;
	chain->block = STKD_BLOCK / n * n;
	for (uint32_t i = 0; i < n; i++) {
		chain->scale[i] = ops->nscale ? ops->scale[ops->nscale > 1 ? i : 0] : 1;
		chain->bias[i] = ops->nbias ? ops->bias[ops->nbias > 1 ? i : 0] : 0;
	}
	for (uint32_t i = 0; i < STKD_BLOCK; i++) {
		if (chain->domain == STKD_F32) {
			chain->scales.f32[i] = (float)chain->scale[i % n];
			chain->biases.f32[i] = (float)chain->bias[i % n];
		} else {
			chain->scales.f64[i] = chain->scale[i % n];
			chain->biases.f64[i] = chain->bias[i % n];
		}
	}
}

/* A number that no float holds would make infinities of its own, and of 0 what is no number. */
static bool are_floats(const struct stkd_chain *chain)
{
	bool are = true;

	for (uint32_t i = 0; i < chain->nchannels; i++)
		are &= isfinite((float)chain->scale[i]) && isfinite((float)chain->bias[i]);
	return are;
}

static int check_ops(const struct stkd_chain *chain, const struct stk_spec_ops *ops,
		     struct stk_err *err)
{
	if (ops->nscale > 1 && ops->nbias > 1 && ops->nscale != ops->nbias)
		return stk_err_set(err, -EINVAL,
				   "scale has %" PRIu32 " numbers and bias %" PRIu32 ": one for "
				   "each channel, or one for all",
				   ops->nscale, ops->nbias);
	if (ops->modulo && (!is_whole_type(chain->from) || !is_whole_type(chain->to)))
		return stk_err_set(err, -EINVAL, "modulo is for whole numbers, not from %s to %s",
				   stk_dtype_name(chain->from), stk_dtype_name(chain->to));
	if (ops->modulo && chain->affine)
		return stk_err_set(err, -EINVAL, "modulo does not go with scale and bias");
	if (chain->from == STK_DTYPE_BOOL && (chain->clamp || ops->modulo))
		return stk_err_set(err, -EINVAL, "%s is not for BOOL",
				   chain->clamp ? "clamp" : "modulo");
	return 0;
}

static int64_t as_i64(double value)
{
	return value >= 0x1p63 ? INT64_MAX : value <= -0x1p63 ? INT64_MIN : (int64_t)value;
}

/* The source goes straight into the store where the block would hold the same bytes. */
static bool is_direct(const struct stkd_chain *chain)
{
	static const enum stk_dtype same[STKD_NDOMAINS] = {
		[STKD_I64] = STK_DTYPE_I64,
		[STKD_U64] = STK_DTYPE_U64,
		[STKD_F32] = STK_DTYPE_F32,
		[STKD_F64] = STK_DTYPE_F64,
	};

	return chain->from == same[chain->domain] && !chain->affine && !chain->clamp &&
	       !chain->modulo;
}

int stkd_chain_init(struct stkd_chain *chain, enum stk_dtype from, enum stk_dtype to,
		    const struct stk_spec_ops *ops, struct stk_err *err)
{
	int r;

	memset(chain, 0, sizeof(*chain));
	chain->from = from;
	chain->to = to;
	chain->in = stk_dtype_size(from);
	chain->out = stk_dtype_size(to);
	chain->casts = stkd_casts_best();
	chain->affine = ops->nscale || ops->nbias;
	chain->clamp = ops->clamp_set;
	chain->modulo = ops->modulo;
	chain->low = ops->clamp[0];
	chain->high = ops->clamp[1];
	chain->ilow = as_i64(ceil(ops->clamp[0]));
	chain->ihigh = as_i64(floor(ops->clamp[1]));
	chain->domain = choose_domain(chain);
	chain->load = chain->casts->load[chain->domain][from];
	if (!chain->load || !chain->casts->store[chain->domain][to][STKD_WRAP])
		return stk_err_set(err, -EINVAL, "stored %s cannot become %s%s",
				   stk_dtype_name(from), stk_dtype_name(to),
				   is_float8(from) ? "; 8-bit floats are targets only" : "");
	r = check_ops(chain, ops, err);
	if (r == 0)
		r = set_range(chain, ops, err);
	if (r < 0)
		return r;
	set_channels(chain, ops);
	if (chain->domain == STKD_F32 && !are_floats(chain))
		return stk_err_set(err, -EINVAL,
				   "scale or bias is beyond what F32 holds, in which stored %s "
				   "becomes %s",
				   stk_dtype_name(from), stk_dtype_name(to));
	chain->pixels = from == STK_DTYPE_U8 && chain->casts->pixels[to].all && chain->affine &&
			!chain->clamp && ops->range == STK_RANGE_REFUSE;
	if (is_direct(chain))
		chain->load = NULL;
	else if (chain->domain == STKD_F64 && chain->casts->load_odd[from] && !chain->affine &&
		 !chain->clamp && stk_dtype_size(to) < 8)
		chain->load = chain->casts->load_odd[from];
	return 0;
}

union block {
	int64_t i64[STKD_BLOCK];
	uint64_t u64[STKD_BLOCK];
	float f32[STKD_BLOCK];
	double f64[STKD_BLOCK];
};

static void calculate_f32(const struct stkd_chain *chain, float *block, size_t n, uint32_t channel)
{
	const struct stkd_casts *casts = chain->casts;

	if (chain->affine && (chain->nchannels == 1 || channel != STKD_ANY_CHANNEL)) {
		uint32_t c = chain->nchannels == 1 ? 0 : channel;

		casts->affine_f32(block, (float)chain->scale[c], (float)chain->bias[c], n);
	} else if (chain->affine) {
		casts->affines_f32(block, chain->scales.f32, chain->biases.f32, n);
	}
	if (chain->clamp)
		casts->clamp_f32(block, (float)chain->low, (float)chain->high, n);
}

static void calculate_f64(const struct stkd_chain *chain, double *block, size_t n, uint32_t channel)
{
	const struct stkd_casts *casts = chain->casts;

	if (chain->affine && (chain->nchannels == 1 || channel != STKD_ANY_CHANNEL)) {
		uint32_t c = chain->nchannels == 1 ? 0 : channel;

		casts->affine_f64(block, chain->scale[c], chain->bias[c], n);
	} else if (chain->affine) {
		casts->affines_f64(block, chain->scales.f64, chain->biases.f64, n);
	}
	if (chain->clamp)
		casts->clamp_f64(block, chain->low, chain->high, n);
}

static void calculate(const struct stkd_chain *chain, union block *block, size_t n,
		      uint32_t channel)
{
	switch (chain->domain) {
	case STKD_I64:
		if (chain->clamp)
			chain->casts->clamp_i64(block->i64, chain->ilow, chain->ihigh, n);
		if (chain->modulo)
			chain->casts->modulo_i64(block->i64, (int64_t)chain->modulo, n);
		return;
	case STKD_U64:
		if (chain->clamp)
			chain->casts->clamp_u64(block->u64, (uint64_t)STK_MAX(chain->ilow, 0),
						(uint64_t)STK_MAX(chain->ihigh, 0), n);
		if (chain->modulo)
			chain->casts->modulo_u64(block->u64, chain->modulo, n);
		return;
	case STKD_F32:
		calculate_f32(chain, block->f32, n, channel);
		return;
	default:
		calculate_f64(chain, block->f64, n, channel);
	}
}

static void run_pixels(const struct stkd_chain *chain, uint8_t *d, const uint8_t *s, size_t n,
		       uint32_t channel)
{
	uint32_t c = chain->nchannels == 1 ? 0 : channel;

	if (c != STKD_ANY_CHANNEL) {
		chain->casts->pixels[chain->to].all(d, s, n, (float)chain->scale[c],
						    (float)chain->bias[c]);
		return;
	}
	for (size_t i = 0; i < n; i += chain->block)
		chain->casts->pixels[chain->to].in_turn(d + i * chain->out, s + i,
							STK_MIN(n - i, chain->block),
							chain->scales.f32, chain->biases.f32);
}

bool stkd_chain_run(const struct stkd_chain *chain, void *dst, const void *src, size_t n,
		    uint32_t channel)
{
	const uint8_t *s = src;
	uint8_t *d = dst;
	union block block;
	bool beyond = false;

	if (!chain->load)
		return !chain->store(dst, src, n) || !chain->strict;
	if (chain->pixels) {
		run_pixels(chain, d, s, n, channel);
		return true;
	}
	for (size_t i = 0; i < n; i += chain->block) {
		size_t some = STK_MIN(n - i, chain->block);

		chain->load(&block, s + i * chain->in, some);
		calculate(chain, &block, some, channel);
		beyond |= chain->store(d + i * chain->out, &block, some);
	}
	return !beyond || !chain->strict;
}
