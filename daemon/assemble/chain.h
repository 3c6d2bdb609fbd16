/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A chain: how values of a stored type become values of a batch: load, scale and bias, clamp,
 * modulo, store. Compiled once per field, immutable after, any thread. Values go through in blocks
 * that stay in the cache: each is read once from the shard and written once into the slot.
 */
#ifndef STKD_CHAIN_H
#define STKD_CHAIN_H

#include "daemon/assemble/casts.h"
#include "proto/spec_ops.h"

#define STKD_ANY_CHANNEL UINT32_MAX

struct stkd_chain {
	enum stk_dtype from, to;
	size_t in, out; /* bytes of a value */
	enum stkd_domain domain;
	const struct stkd_casts *casts;
	stkd_load_fn load; /* NULL: the store reads the source itself */
	stkd_store_fn store;
	bool strict; /* a value out of range is an error */
	bool affine, clamp;
	bool pixels;         /* no block between */
	uint64_t modulo;     /* 0: none */
	double low, high;    /* of clamp, in a float domain */
	int64_t ilow, ihigh; /* in an integer one */
	uint32_t nchannels;  /* 1: the same scale and bias for all values */
	uint32_t block;      /* values that go through together: whole cycles of the channels */
	double scale[STK_SPEC_CHANNELS_MAX], bias[STK_SPEC_CHANNELS_MAX];
	/* One value for each place of a block, channels in turn; of type float or double. */
	union {
		float f32[STKD_BLOCK];
		double f64[STKD_BLOCK];
	} scales, biases;
};

/**
 * stkd_chain_init() - compile
 * @ops: what to do; channel counts were checked against the shape by the caller
 *
 * Refuses a cast that may lose range without saying what is to happen then, and arithmetic that
 * the type has no meaning for. Return: 0; -EINVAL, with what is wrong in @err, without the field.
 */
int stkd_chain_init(struct stkd_chain *chain, enum stk_dtype from, enum stk_dtype to,
		    const struct stk_spec_ops *ops, struct stk_err *err);

/**
 * stkd_chain_run() - n values
 * @channel: all values belong to it; STKD_ANY_CHANNEL: they start with channel 0 and take turns
 *
 * Return: true; false when the chain is strict and a value was out of range.
 */
bool stkd_chain_run(const struct stkd_chain *chain, void *dst, const void *src, size_t n,
		    uint32_t channel);

#endif
