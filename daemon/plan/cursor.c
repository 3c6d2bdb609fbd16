/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the byte form of a cursor. Input is hostile: every byte is looked at once, within bounds,
 * and each number has one spelling. Any thread.
 */
#include "daemon/plan/cursor.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

#define CHECKSUM_SIZE 4
#define NUMBER_MAX    10 /* bytes of a number below 2^64, seven bits each */
#define MORE_MAX      (8 * NUMBER_MAX)
#define BITS_SHIFT    9 /* beside the number of buckets, up to 256 */

static size_t put_number(uint8_t *out, uint64_t n)
{
	size_t size = 0;

	while (n >= 0x80) {
		out[size++] = (uint8_t)(n | 0x80);
		n >>= 7;
	}
	out[size++] = (uint8_t)n;
	return size;
}

/* Appends the checksum. */
static size_t seal(uint8_t *out, size_t size)
{
	uint32_t sum = XXH32(out, size, 0);

	for (unsigned i = 0; i < CHECKSUM_SIZE; i++)
		out[size++] = (uint8_t)(sum >> (8 * i));
	return size;
}

enum { HAS_SKIP = 1, HAS_OUTLINE = 2 };

/* Counts of `bits` bits each; 0: as numbers. */
static size_t put_head(uint8_t *out, const struct stkd_cursor *cursor, uint32_t nbuckets,
		       unsigned bits)
{
	size_t size = put_number(out, STKD_CURSOR_VERSION);

	size += put_number(out + size, cursor->epoch);
	size += put_number(out + size, cursor->step);
	size += put_number(out + size, nbuckets | bits << BITS_SHIFT);
	if (!nbuckets)
		return size;
	size += put_number(out + size, cursor->position);
	size += put_number(out + size, cursor->delivered);
	return size + put_number(out + size, cursor->lent);
}

static size_t put_more(uint8_t *out, const struct stkd_cursor *cursor)
{
	const uint64_t outline[] = {cursor->base,   cursor->steps,     cursor->main_steps,
				    cursor->lender, cursor->lend_step, cursor->lend};
	uint64_t flags = (cursor->skip ? HAS_SKIP : 0) | (cursor->outline ? HAS_OUTLINE : 0);
	size_t size = put_number(out, flags);

	if (cursor->skip) {
		size += put_number(out + size, cursor->skip);
		size += put_number(out + size, cursor->first);
	}
	for (size_t i = 0; cursor->outline && i < STK_ARRAY_SIZE(outline); i++)
		size += put_number(out + size, outline[i]);
	return size;
}

/* With counts as numbers; 0: they do not fit. */
static size_t put_plain(uint8_t out[STK_SHM_CURSOR_MAX], const struct stkd_cursor *cursor)
{
	size_t size = put_head(out, cursor, cursor->nbuckets, 0);

	for (uint32_t b = 0; b < cursor->nbuckets; b++) {
		if (size > STK_SHM_CURSOR_MAX - CHECKSUM_SIZE - MORE_MAX - NUMBER_MAX)
			return 0;
		size += put_number(out + size, cursor->waiting[b]);
	}
	if (cursor->nbuckets && (cursor->skip || cursor->outline))
		size += put_more(out + size, cursor);
	return size;
}

static unsigned bits_of(const struct stkd_cursor *cursor)
{
	uint64_t all = 0;

	for (uint32_t b = 0; b < cursor->nbuckets; b++)
		all |= cursor->waiting[b];
	return all ? 64 - (unsigned)__builtin_clzll(all) : 1;
}

/* With counts of as many bits as the largest takes; 0: they do not fit. */
static size_t put_packed(uint8_t out[STK_SHM_CURSOR_MAX], const struct stkd_cursor *cursor)
{
	unsigned bits = bits_of(cursor);
	size_t size = put_head(out, cursor, cursor->nbuckets, bits);
	size_t bytes = ((size_t)bits * cursor->nbuckets + 7) / 8;

	size += put_more(out + size, cursor);
	if (size + bytes > STK_SHM_CURSOR_MAX - CHECKSUM_SIZE)
		return 0;
	memset(out + size, 0, bytes);
	for (size_t i = 0; i < (size_t)bits * cursor->nbuckets; i++)
		out[size + i / 8] |=
			(uint8_t)((cursor->waiting[i / bits] >> i % bits & 1) << i % 8);
	return size + bytes;
}

size_t stkd_cursor_encode(const struct stkd_cursor *cursor, uint8_t out[STK_SHM_CURSOR_MAX])
{
	size_t size = put_plain(out, cursor);

	if (!size)
		size = put_packed(out, cursor);
	/* Terabytes of waiting samples, then: the epoch is planned again up to the step. */
	if (!size)
		size = put_head(out, cursor, 0, 0);
	return seal(out, size);
}

struct reader {
	const uint8_t *at, *end;
	bool bad;
};

static uint64_t get_number(struct reader *r)
{
	uint64_t n = 0;

	for (unsigned shift = 0; r->at < r->end && shift < 64; shift += 7) {
		uint64_t byte = *r->at++;
		uint64_t bits = byte & 0x7f;

		if (shift && (byte == 0 || bits << shift >> shift != bits))
			break; /* a longer spelling than needed, or more than 64 bits */
		n |= bits << shift;
		if (!(byte & 0x80))
			return n;
	}
	r->bad = true;
	return 0;
}

static bool sum_matches(const uint8_t *data, size_t size)
{
	uint32_t sum = XXH32(data, size, 0);

	for (unsigned i = 0; i < CHECKSUM_SIZE; i++)
		if (data[size + i] != (uint8_t)(sum >> (8 * i)))
			return false;
	return true;
}

/* Zero flags are spelled in the packed form only. */
static void get_more(struct reader *r, struct stkd_cursor *cursor, bool packed)
{
	uint64_t flags = get_number(r), lender, first;

	r->bad |= flags > (HAS_SKIP | HAS_OUTLINE) || (!flags && !packed);
	if (flags & HAS_SKIP) {
		cursor->skip = get_number(r);
		first = get_number(r);
		cursor->first = (uint32_t)first;
		r->bad |= !cursor->skip || first >= cursor->nbuckets;
	}
	cursor->outline = flags & HAS_OUTLINE;
	if (!cursor->outline)
		return;
	cursor->base = get_number(r);
	cursor->steps = get_number(r);
	cursor->main_steps = get_number(r);
	lender = get_number(r);
	cursor->lender = (uint32_t)lender;
	r->bad |= lender > STK_SPEC_EDGES_MAX;
	cursor->lend_step = get_number(r);
	cursor->lend = get_number(r);
}

static void get_packed(struct reader *r, struct stkd_cursor *cursor, unsigned bits)
{
	size_t n = (size_t)bits * cursor->nbuckets, bytes = (n + 7) / 8;

	if (r->bad || (size_t)(r->end - r->at) != bytes) {
		r->bad = true;
		return;
	}
	for (size_t i = 0; i < n; i++)
		cursor->waiting[i / bits] |= (uint64_t)(r->at[i / 8] >> i % 8 & 1) << i % bits;
	r->bad |= bits_of(cursor) != bits || (n % 8 && r->at[bytes - 1] >> n % 8);
	r->at += bytes;
}

static int get_fields(struct reader *r, struct stkd_cursor *cursor, struct stk_err *err)
{
	uint64_t version = get_number(r), nbuckets, bits;

	if (version != STKD_CURSOR_VERSION)
		return stk_err_set(err, -EINVAL,
				   "cursor: version %" PRIu64 ", this stoker reads %d", version,
				   STKD_CURSOR_VERSION);
	cursor->epoch = get_number(r);
	cursor->step = get_number(r);
	nbuckets = get_number(r);
	bits = nbuckets >> BITS_SHIFT;
	nbuckets &= (UINT64_C(1) << BITS_SHIFT) - 1;
	if (nbuckets > STK_SPEC_EDGES_MAX || bits > 64 || (bits && !nbuckets))
		return stk_err_set(err, -EINVAL, "cursor: %" PRIu64 " buckets, at most %d allowed",
				   nbuckets, STK_SPEC_EDGES_MAX);
	cursor->nbuckets = (uint32_t)nbuckets;
	if (nbuckets) {
		cursor->position = get_number(r);
		cursor->delivered = get_number(r);
		cursor->lent = get_number(r);
	}
	for (uint32_t b = 0; !bits && b < nbuckets; b++)
		cursor->waiting[b] = get_number(r);
	if (bits || (nbuckets && r->at < r->end && !r->bad))
		get_more(r, cursor, bits > 0);
	if (bits)
		get_packed(r, cursor, (unsigned)bits);
	if (r->bad || r->at != r->end)
		return stk_err_set(err, -EINVAL, "cursor: malformed");
	return 0;
}

/* Size and checksum are right: only then is anything read. */
static int open_reader(const void *data, size_t size, struct reader *ret, struct stk_err *err)
{
	if (size <= CHECKSUM_SIZE || size > STK_SHM_CURSOR_MAX)
		return stk_err_set(err, -EINVAL, "cursor: %zu bytes, %d..%u allowed", size,
				   CHECKSUM_SIZE + 1, STK_SHM_CURSOR_MAX);
	size -= CHECKSUM_SIZE;
	if (!sum_matches(data, size))
		return stk_err_set(err, -EINVAL, "cursor: its checksum does not match");
	*ret = (struct reader){.at = data, .end = (const uint8_t *)data + size};
	return 0;
}

int stkd_cursor_decode(const void *data, size_t size, struct stkd_cursor *ret, struct stk_err *err)
{
	struct stkd_cursor cursor = {0};
	struct reader reader = {0};
	int r = open_reader(data, size, &reader, err);

	if (r == 0)
		r = get_fields(&reader, &cursor, err);
	if (r < 0)
		return r;
	*ret = cursor;
	return 0;
}

size_t stkd_packed_cursor_encode(const struct stkd_packed_cursor *cursor,
				 uint8_t out[STK_SHM_CURSOR_MAX])
{
	size_t size = put_number(out, STKD_CURSOR_PACKED);

	size += put_number(out + size, cursor->epoch);
	size += put_number(out + size, cursor->step);
	size += put_number(out + size, cursor->at);
	size += put_number(out + size, cursor->in);
	if (cursor->parts) {
		size += put_number(out + size, cursor->parts);
		size += put_number(out + size, cursor->before);
	}
	return seal(out, size);
}

int stkd_packed_cursor_decode(const void *data, size_t size, struct stkd_packed_cursor *ret,
			      struct stk_err *err)
{
	struct stkd_packed_cursor cursor = {0};
	bool spread;
	struct reader reader = {0};
	uint64_t version;
	int r = open_reader(data, size, &reader, err);

	if (r < 0)
		return r;
	version = get_number(&reader);
	if (version != STKD_CURSOR_PACKED)
		return stk_err_set(err, -EINVAL,
				   "cursor: version %" PRIu64 ", this stoker reads %d of packs",
				   version, STKD_CURSOR_PACKED);
	cursor.epoch = get_number(&reader);
	cursor.step = get_number(&reader);
	cursor.at = get_number(&reader);
	cursor.in = get_number(&reader);
	spread = reader.at != reader.end;
	if (spread) {
		cursor.parts = get_number(&reader);
		cursor.before = get_number(&reader);
	}
	if (reader.bad || reader.at != reader.end || (!cursor.step && (cursor.at || cursor.in)) ||
	    (spread && (!cursor.in || cursor.parts > UINT32_MAX || cursor.before >= cursor.parts)))
		return stk_err_set(err, -EINVAL, "cursor: malformed");
	*ret = cursor;
	return 0;
}
