/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns what is hashed, in which order: numbers of eight bytes, little-endian. One thread.
 */
#include "tools/stoker/sequence.h"

#include <endian.h>
#include <stdlib.h>
#include <xxhash.h>

#include "proto/state.h"

struct sequence {
	XXH3_state_t *state;
};

struct sequence *sequence_new(void)
{
	struct sequence *sequence = calloc(1, sizeof(*sequence));

	if (sequence)
		sequence->state = XXH3_createState();
	if (!sequence || !sequence->state) {
		free(sequence);
		return NULL;
	}
	XXH3_128bits_reset(sequence->state);
	return sequence;
}

struct sequence *sequence_free(struct sequence *sequence)
{
	if (sequence)
		XXH3_freeState(sequence->state);
	free(sequence);
	return NULL;
}

static void add(struct sequence *sequence, uint64_t number)
{
	number = htole64(number);
	XXH3_128bits_update(sequence->state, &number, sizeof(number));
}

/* Rows begin where they do; the first segment of the step is number 0. */
static void add_rows(struct sequence *sequence, const struct stkd_step *step)
{
	const uint32_t *first = step->row_first;

	for (uint32_t r = 0; r < step->nids; r++)
		add(sequence, first[r + 1] - first[0]);
	for (uint32_t s = first[0]; s < first[step->nids]; s++) {
		add(sequence, step->segments[s].id);
		add(sequence, (uint64_t)step->segments[s].from << 32 | step->segments[s].length);
	}
}

void sequence_add(struct sequence *sequence, const struct stkd_step *step, uint64_t rows)
{
	const uint64_t numbers[] = {step->epoch, step->step,   step->shape_class, step->width,
				    rows,        step->width2, step->nids};

	for (size_t i = 0; i < STK_ARRAY_SIZE(numbers); i++)
		add(sequence, numbers[i]);
	if (step->segments) {
		add_rows(sequence, step);
		return;
	}
	for (uint32_t i = 0; i < step->nids; i++)
		add(sequence, step->ids[i]);
}

void sequence_text(const struct sequence *sequence, char text[33])
{
	XXH128_canonical_t bytes;

	XXH128_canonicalFromHash(&bytes, XXH3_128bits_digest(sequence->state));
	stk_hex_encode(bytes.digest, sizeof(bytes.digest), text);
}
