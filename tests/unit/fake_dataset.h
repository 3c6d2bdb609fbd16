/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A data set made up in memory for tests and benches of assembly: random bytes in real, mapped files
 * behind a format of its own, every row at an odd address. One thread.
 */
#ifndef FAKE_DATASET_H
#define FAKE_DATASET_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/shard/dataset.h"

#define FAKE_FIELDS_MAX 70

struct fake_dataset {
	struct stkd_dataset dataset;
	struct stkd_field fields[FAKE_FIELDS_MAX];
	bool aligned[FAKE_FIELDS_MAX], aligned2[FAKE_FIELDS_MAX];
	uint64_t longest[FAKE_FIELDS_MAX];
	uint32_t *counts[FAKE_FIELDS_MAX];  /* elements by sample; 1 for a fixed field */
	uint64_t *offsets[FAKE_FIELDS_MAX]; /* in the sample's file */
	uint64_t seed;
	/* A row that says something else than at open: UINT64_MAX for none. */
	uint64_t lie_sample, lie_count;
	uint32_t lie_field;
};

/* What shard->state points to: which samples of the set this file has. */
struct fake_shard {
	struct fake_dataset *fake;
	uint64_t first;
};

static inline uint32_t fake_random(struct fake_dataset *fake, uint32_t below)
{
	fake->seed = fake->seed * 6364136223846793005u + 1442695040888963407u;
	return below ? (uint32_t)((fake->seed >> 33) % below) : 0;
}

static inline uint64_t fake_element_size(const struct stkd_field *field)
{
	return field->inner_count * stk_dtype_size(field->dtype);
}

static inline int fake_row(const struct stkd_shard *shard, uint32_t field, uint64_t row,
			   struct stkd_extent *ret)
{
	const struct fake_shard *state = shard->state;
	const struct fake_dataset *fake = state->fake;
	uint64_t sample = state->first + row;
	uint64_t count = fake->counts[field][sample];

	if (sample == fake->lie_sample && field == fake->lie_field)
		count = fake->lie_count;
	*ret = (struct stkd_extent){
		.data = shard->map + fake->offsets[field][sample],
		.count = count,
		.size = count * fake_element_size(&fake->fields[field]),
	};
	return 0;
}

static const struct stkd_format fake_format = {.name = "fake", .row = fake_row};

/* A field; counts are 1, or random up to `longest` when it is ragged. Returns its index. */
static inline uint32_t fake_field(struct fake_dataset *fake, const char *name, enum stk_dtype dtype,
				  bool ragged, uint32_t longest, uint32_t inner0, uint32_t inner1)
{
	uint32_t index = fake->dataset.nfields++;
	struct stkd_field *field = &fake->fields[index];

	*field = (struct stkd_field){.name = strdup(name), .dtype = dtype, .ragged = ragged};
	field->inner_count = 1;
	for (uint32_t inner = inner0; inner; inner = field->ndims == 1 ? inner1 : 0) {
		field->inner[field->ndims++] = inner;
		field->inner_count *= inner;
	}
	fake->counts[index] = calloc(fake->dataset.count + 1, sizeof(uint32_t));
	fake->offsets[index] = calloc(fake->dataset.count + 1, sizeof(uint64_t));
	for (uint64_t i = 0; i < fake->dataset.count; i++)
		fake->counts[index][i] = ragged ? fake_random(fake, longest + 1) : 1;
	return index;
}

static inline void fake_init(struct fake_dataset *fake, uint64_t count, uint64_t seed)
{
	memset(fake, 0, sizeof(*fake));
	fake->seed = seed;
	fake->lie_sample = UINT64_MAX;
	fake->dataset.count = count;
	fake->dataset.path = strdup("fake");
	fake->dataset.fields = fake->fields;
	fake->dataset.aligned = fake->aligned;
	fake->dataset.aligned2 = fake->aligned2;
	fake->dataset.length2_field = UINT32_MAX;
	fake->dataset.longest = fake->longest;
}

/* Gives a ragged field the lengths of another one. */
static inline void fake_align(struct fake_dataset *fake, uint32_t field, uint32_t other)
{
	memcpy(fake->counts[field], fake->counts[other], fake->dataset.count * sizeof(uint32_t));
}

/* Places samples [first, last) in a file and maps it. */
static inline struct stkd_shard *fake_shard(struct fake_dataset *fake, uint64_t first,
					    uint64_t last)
{
	struct stkd_shard *shard = calloc(1, sizeof(*shard));
	struct fake_shard *state = calloc(1, sizeof(*state));
	char path[32]; /* of a file without a name, so that a test that dies leaves none */
	uint64_t size = 1;
	struct stat st;
	uint8_t *map;
	int fd = memfd_create("fake", MFD_CLOEXEC);

	*state = (struct fake_shard){.fake = fake, .first = first};
	for (uint64_t i = first; i < last; i++) {
		for (uint32_t f = 0; f < fake->dataset.nfields; f++) {
			fake->offsets[f][i] = size;
			size += fake->counts[f][i] * fake_element_size(&fake->fields[f]);
			size += 1 - size % 2;
		}
	}
	if (fd < 0 || ftruncate(fd, (off_t)size) < 0 || fstat(fd, &st) < 0)
		abort();
	map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		abort();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	for (uint64_t i = 0; i < size; i++)
		map[i] = (uint8_t)fake_random(fake, 256);
	*shard = (struct stkd_shard){
		.path = strdup(path),
		.format = &fake_format,
		.file_size = size,
		.dev = st.st_dev,
		.ino = st.st_ino,
		.fd = fd,
		.map = map,
		.count = last - first,
		.fields = fake->fields,
		.nfields = fake->dataset.nfields,
		.state = state,
	};
	return shard;
}

/* Before fake_build(): the field that has the second lengths. */
static inline void fake_second(struct fake_dataset *fake, uint32_t field)
{
	size_t size = fake->dataset.count * sizeof(uint32_t);

	fake->dataset.length2_field = field;
	fake->dataset.lengths2 = malloc(size + 1);
	memcpy(fake->dataset.lengths2, fake->counts[field], size);
}

static inline void fake_summarise(struct fake_dataset *fake, uint32_t length_field)
{
	struct stkd_dataset *dataset = &fake->dataset;
	size_t size = dataset->count * sizeof(uint32_t);

	dataset->length_field = length_field;
	dataset->lengths = malloc(size + 1);
	memcpy(dataset->lengths, fake->counts[length_field], size);
	for (uint32_t f = 0; f < dataset->nfields; f++) {
		if (!fake->fields[f].ragged)
			continue;
		fake->aligned[f] = !memcmp(fake->counts[f], dataset->lengths, size);
		fake->aligned2[f] =
			dataset->lengths2 && !memcmp(fake->counts[f], dataset->lengths2, size);
		for (uint64_t i = 0; i < dataset->count; i++)
			fake->longest[f] = STK_MAX(fake->longest[f], fake->counts[f][i]);
	}
}

/* After the fields: the files, in equal parts, and what a data set knows of them. */
static inline struct stkd_dataset *fake_build(struct fake_dataset *fake, size_t nshards,
					      uint32_t length_field)
{
	struct stkd_dataset *dataset = &fake->dataset;

	dataset->nshards = nshards;
	dataset->shards = calloc(nshards, sizeof(dataset->shards[0]));
	dataset->first = calloc(nshards + 1, sizeof(dataset->first[0]));
	dataset->field_of = calloc(nshards * dataset->nfields + 1, sizeof(dataset->field_of[0]));
	dataset->first[nshards] = dataset->count;
	for (size_t s = 0; s < nshards; s++)
		dataset->first[s] = dataset->count * s / nshards;
	for (size_t s = 0; s < nshards; s++) {
		dataset->shards[s] = fake_shard(fake, dataset->first[s], dataset->first[s + 1]);
		for (uint32_t f = 0; f < dataset->nfields; f++)
			dataset->field_of[s * dataset->nfields + f] = (uint16_t)f;
	}
	fake_summarise(fake, length_field);
	return dataset;
}

static inline void fake_deinit(struct fake_dataset *fake)
{
	struct stkd_dataset *dataset = &fake->dataset;

	for (size_t s = 0; s < dataset->nshards; s++) {
		struct stkd_shard *shard = dataset->shards[s];

		munmap((void *)shard->map, shard->file_size);
		close(shard->fd);
		free(shard->path);
		free(shard->state);
		free(shard);
	}
	for (uint32_t f = 0; f < dataset->nfields; f++) {
		free(fake->fields[f].name);
		free(fake->counts[f]);
		free(fake->offsets[f]);
	}
	free(dataset->shards);
	free(dataset->first);
	free(dataset->field_of);
	free(dataset->lengths);
	free(dataset->lengths2);
	free(dataset->path);
}

#endif
