/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the keyed permutation: an alternating Feistel network, applied again while it lands outside
 * (cycle walking), so that it is a bijection of 0..n-1 for every n. Its domain is a number of values
 * times a power of two, chosen to exceed n by less than about its root: a walk is a rare event.
 * Plain values; any thread.
 */
#include "daemon/plan/order.h"

#include <assert.h>

#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)
/* A tiny n walks in a larger domain: halves of few values would reach few of the n! orders. */
#define BITS_MIN 8

/* The finalizer of splitmix64. */
static uint64_t mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

void stkd_order_init(struct stkd_order *order, int kind, uint64_t n, uint64_t seed, uint64_t epoch,
		     uint32_t dataset)
{
	unsigned bits = BITS_MIN;
	uint64_t h;

	while (bits < 64 && n > UINT64_C(1) << bits)
		bits++;
	/* A single index would walk through the smallest domain to come back to itself. */
	*order = (struct stkd_order){
		.n = n, .kind = n > 1 ? kind : STK_ORDER_NONE, .right_bits = bits / 2};
	order->left = ((n - 1) >> order->right_bits) + 1; /* rounded up; n 0 has no indexes */
	if (order->left < UINT64_C(1) << BITS_MIN / 2)
		order->left = UINT64_C(1) << BITS_MIN / 2;
	h = mix(seed + GOLDEN);
	h = mix(h ^ mix(epoch + 2 * GOLDEN));
	h = mix(h ^ mix(dataset + 3 * GOLDEN));
	for (unsigned i = 0; i < STKD_ORDER_ROUNDS; i++)
		order->keys[i] = mix(h + (i + 1) * GOLDEN);
}

/* 64 pseudo-random bits of half an index, the upper ones best. */
static inline uint64_t scramble(uint64_t half, uint64_t key)
{
	uint64_t h = (half + key) * UINT64_C(0xbf58476d1ce4e5b9);

	h ^= h >> 29;
	return h * UINT64_C(0x94d049bb133111eb);
}

/* The upper half of a product: spreads 64 random bits over 0..n-1. */
static inline uint64_t spread(uint64_t random, uint64_t n)
{
	return (uint64_t)((unsigned __int128)random * n >> 64);
}

static inline uint64_t permute(const struct stkd_order *order, uint64_t x)
{
	uint64_t mask = (UINT64_C(1) << order->right_bits) - 1;
	uint64_t left = x >> order->right_bits, right = x & mask;

	for (unsigned i = 0; i < STKD_ORDER_ROUNDS; i += 2) {
		left += spread(scramble(right, order->keys[i]), order->left);
		left -= left >= order->left ? order->left : 0;
		right ^= scramble(left, order->keys[i + 1]) >> 32 & mask;
	}
	return left << order->right_bits | right;
}

static inline uint64_t walk(const struct stkd_order *order, uint64_t i)
{
	/* Ends: the walk follows a cycle of a bijection and i itself, on that cycle, is inside. */
	do {
		i = permute(order, i);
	} while (i >= order->n);
	return i;
}

uint64_t stkd_order_at(const struct stkd_order *order, uint64_t i)
{
	assert(i < order->n);
	return order->kind == STK_ORDER_NONE ? i : walk(order, i);
}

/* The permutation of neighbours is independent work, which a loop lets the processor overlap. */
void stkd_order_fill(const struct stkd_order *order, uint64_t i, uint64_t n, uint64_t *ret)
{
	const struct stkd_order copy = *order;

	assert(n <= order->n && i <= order->n - n);
	if (order->kind == STK_ORDER_NONE) {
		for (uint64_t k = 0; k < n; k++)
			ret[k] = i + k;
		return;
	}
	for (uint64_t k = 0; k < n; k++)
		ret[k] = walk(&copy, i + k);
}
