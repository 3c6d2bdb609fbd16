/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/assemble/fields.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct stkd_quarantine {
	pthread_mutex_t lock;
	uint64_t rows;
	bool more;
	uint32_t n;
	struct stkd_bad bad[STKD_QUARANTINE_MAX]; /* by sample */
};

struct stkd_quarantine *stkd_quarantine_new(void)
{
	struct stkd_quarantine *q = calloc(1, sizeof(*q));

	if (q)
		pthread_mutex_init(&q->lock, NULL);
	return q;
}

struct stkd_quarantine *stkd_quarantine_free(struct stkd_quarantine *q)
{
	if (q)
		pthread_mutex_destroy(&q->lock);
	free(q);
	return NULL;
}

/* Where the sample is, or would be. */
static uint32_t find(const struct stkd_quarantine *q, uint64_t sample)
{
	uint32_t low = 0, high = q->n;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (q->bad[middle].sample < sample)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static void insert(struct stkd_quarantine *q, const struct stkd_bad *bad)
{
	uint32_t at = find(q, bad->sample);

	if (at < q->n && q->bad[at].sample == bad->sample) {
		/* Pieces of one sample may be bad in different fields. */
		if (bad->op < q->bad[at].op)
			q->bad[at] = *bad;
		return;
	}
	q->more |= q->n == STKD_QUARANTINE_MAX;
	if (at == STKD_QUARANTINE_MAX)
		return;
	q->n = STK_MIN(q->n + 1, STKD_QUARANTINE_MAX);
	memmove(&q->bad[at + 1], &q->bad[at], (q->n - 1 - at) * sizeof(q->bad[0]));
	q->bad[at] = *bad;
}

void stkd_quarantine_note(struct stkd_quarantine *q, const struct stkd_bad *bad)
{
	pthread_mutex_lock(&q->lock);
	q->rows++;
	insert(q, bad);
	pthread_mutex_unlock(&q->lock);
}

uint32_t stkd_quarantine_list(struct stkd_quarantine *q, struct stkd_bad *ret, uint32_t most,
			      uint64_t *ret_rows, bool *ret_more)
{
	uint32_t n;

	pthread_mutex_lock(&q->lock);
	n = STK_MIN(q->n, most);
	memcpy(ret, q->bad, n * sizeof(*ret));
	*ret_rows = q->rows;
	*ret_more = q->more || n < q->n;
	pthread_mutex_unlock(&q->lock);
	return n;
}

static json_t *bad_json(const struct stkd_assembly *assembly, const struct stkd_bad *bad)
{
	const struct stkd_op *op = &assembly->ops[bad->op];
	json_t *json;
	uint64_t row;
	size_t shard;

	stkd_dataset_locate(assembly->dataset, bad->sample, &shard, &row);
	json = json_pack("{s:I, s:s, s:I, s:s, s:o}", "sample", (json_int_t)bad->sample, "shard",
			 assembly->dataset->shards[shard]->path, "row", (json_int_t)row, "field",
			 op->name, "reason",
			 json_sprintf("a value of stored %s does not fit %s",
				      stk_dtype_name(op->from), stk_dtype_name(op->to)));
	if (json && bad->offset != STKD_NO_OFFSET)
		json_object_set_new(json, "offset", json_integer((json_int_t)bad->offset));
	return json;
}

json_t *stkd_assembly_quarantined(const struct stkd_assembly *assembly, uint32_t most)
{
	struct stkd_bad bad[STKD_QUARANTINE_MAX];
	json_t *samples = json_array();
	uint64_t rows = 0;
	bool more = false;
	uint32_t n = 0;

	if (assembly->quarantine)
		n = stkd_quarantine_list(assembly->quarantine, bad,
					 STK_MIN(most, STKD_QUARANTINE_MAX), &rows, &more);
	for (uint32_t i = 0; i < n; i++)
		json_array_append_new(samples, bad_json(assembly, &bad[i]));
	return json_pack("{s:I, s:b, s:o}", "rows", (json_int_t)rows, "more", more, "samples",
			 samples);
}
