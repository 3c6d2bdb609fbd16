/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens a file, finds its format, maps it. Immutable afterwards: rows and lengths on any thread.
 */
#include "daemon/shard/shard.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/shard/filetype.h"
#include "daemon/shard/guard.h"
#include "daemon/shard/tensors.h"

static const struct stkd_format *const formats[] = {&stkd_format_safetensors};

/* Sets fd, file_size, dev and ino. */
static int open_file(struct stkd_shard *shard, struct stk_err *err)
{
	struct stat st;

	/* O_NONBLOCK: a FIFO of that name must not hold us up before we have seen what it is. */
	shard->fd = open(shard->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (shard->fd < 0)
		return stk_err_set(err, -errno, "%m");
	if (fstat(shard->fd, &st) < 0)
		return stk_err_set(err, -errno, "%m");
	if (!S_ISREG(st.st_mode))
		return stk_err_set(err, -EINVAL, "not a regular file%s",
				   S_ISDIR(st.st_mode) ? " but a directory" : "");
	if (!st.st_size)
		return stk_err_set(err, -EBADMSG, "empty file");
	shard->file_size = (uint64_t)st.st_size;
	shard->dev = st.st_dev;
	shard->ino = st.st_ino;
	return 0;
}

static int find_format(struct stkd_shard *shard, struct stk_err *err)
{
	uint8_t head[STKD_FILETYPE_HEAD];
	size_t size = STK_MIN(sizeof(head), shard->file_size);
	const char *other;
	int r;

	r = stkd_pread(shard->fd, head, size, 0, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < STK_ARRAY_SIZE(formats); i++)
		if (formats[i]->probe(head, size, shard->file_size)) {
			shard->format = formats[i];
			return 0;
		}
	other = stkd_filetype_name(head, size);
	if (other)
		return stk_err_set(err, -EBADMSG,
				   "wrong file type: %s; a shard is a safetensors file", other);
	shard->format = formats[0]; /* says best what is wrong with it */
	return 0;
}

static uint64_t map_count_max(void)
{
	FILE *file = fopen("/proc/sys/vm/max_map_count", "re");
	uint64_t max = 0;

	if (!file)
		return 0;
	if (fscanf(file, "%" SCNu64, &max) != 1)
		max = 0;
	fclose(file);
	return max;
}

static int map_file(struct stkd_shard *shard, struct stk_err *err)
{
	void *map = mmap(NULL, shard->file_size, PROT_READ, MAP_SHARED, shard->fd, 0);

	if (map != MAP_FAILED) {
		shard->map = map;
		shard->fd = stk_close(shard->fd);
		return 0;
	}
	if (errno == ENODEV)
		return stk_err_set(
			err, -ENODEV,
			"its file system cannot map files (mmap); copy it to one that can");
	if (errno == ENOMEM)
		return stk_err_set(
			err, -ENOMEM,
			"no address space to map %" PRIu64
			" bytes: each shard needs one mapping, vm.max_map_count is %" PRIu64,
			shard->file_size, map_count_max());
	return stk_err_set(err, -errno, "mmap: %m");
}

int stkd_shard_open(const char *path, const struct stkd_shard_limits *limits,
		    struct stkd_shard **ret, struct stk_err *err)
{
	_cleanup_(stkd_shard_freep) struct stkd_shard *shard = NULL;
	int r;

	shard = calloc(1, sizeof(*shard));
	if (!shard)
		return stk_err_set(err, -ENOMEM, "%s: no memory", path);
	shard->fd = -1;
	shard->path = strdup(path);
	if (!shard->path)
		return stk_err_set(err, -ENOMEM, "%s: no memory", path);
	r = open_file(shard, err);
	if (r >= 0)
		r = find_format(shard, err);
	if (r >= 0)
		r = shard->format->open(shard, limits, err);
	if (r >= 0)
		r = map_file(shard, err);
	if (r < 0) {
		stk_err_prefix(err, "%s: ", path);
		return r;
	}
	*ret = STK_STEAL(shard);
	return 0;
}

struct stkd_shard *stkd_shard_free(struct stkd_shard *shard)
{
	if (!shard)
		return NULL;
	if (shard->state)
		shard->format->close(shard);
	if (shard->map)
		munmap((void *)shard->map, shard->file_size);
	for (uint32_t i = 0; i < shard->nfields; i++)
		free(shard->fields[i].name);
	free(shard->fields);
	stk_close(shard->fd);
	free(shard->path);
	free(shard);
	return NULL;
}

static int compare_name(const void *name, const void *field)
{
	return strcmp(name, ((const struct stkd_field *)field)->name);
}

int stkd_shard_field(const struct stkd_shard *shard, const char *name)
{
	const struct stkd_field *field;

	if (!shard->nfields)
		return -1;
	field = bsearch(name, shard->fields, shard->nfields, sizeof(*field), compare_name);
	return field ? (int)(field - shard->fields) : -1;
}

bool stkd_field_equal(const struct stkd_field *a, const struct stkd_field *b)
{
	return !strcmp(a->name, b->name) && a->dtype == b->dtype && a->ragged == b->ragged &&
	       a->ndims == b->ndims && !memcmp(a->inner, b->inner, a->ndims * sizeof(*a->inner));
}

const char *stkd_field_text(const struct stkd_field *field, char out[STKD_FIELD_TEXT_SIZE])
{
	char label[STKD_LABEL_SIZE];
	int n = snprintf(out, STKD_FIELD_TEXT_SIZE, "%s: %s%s", stkd_label(field->name, label),
			 stk_dtype_name(field->dtype), field->ragged ? " ragged" : "");

	/* At most 7 numbers of 20 digits: it fits. */
	for (uint32_t i = 0; i < field->ndims; i++)
		n += snprintf(out + n, STKD_FIELD_TEXT_SIZE - (size_t)n, "%s%" PRIu64,
			      i ? ", " : " [", field->inner[i]);
	if (field->ndims)
		snprintf(out + n, STKD_FIELD_TEXT_SIZE - (size_t)n, "]");
	return out;
}

int stkd_shard_agree(const struct stkd_shard *shard, const struct stkd_shard *other,
		     struct stk_err *err)
{
	uint32_t n = STK_MAX(shard->nfields, other->nfields);

	for (uint32_t i = 0; i < n; i++) {
		char a[STKD_FIELD_TEXT_SIZE] = "no more fields", b[STKD_FIELD_TEXT_SIZE];

		if (i < shard->nfields && i < other->nfields &&
		    stkd_field_equal(&shard->fields[i], &other->fields[i]))
			continue;
		strcpy(b, a);
		if (i < shard->nfields)
			stkd_field_text(&shard->fields[i], a);
		if (i < other->nfields)
			stkd_field_text(&other->fields[i], b);
		return stk_err_set(err, -EINVAL, "fields disagree: %s has %s, %s has %s",
				   shard->path, a, other->path, b);
	}
	return 0;
}

/* What read_lengths() needs; it runs under the guard and owns nothing. */
struct lengths_job {
	const struct stkd_shard *shard;
	uint32_t field;
	uint64_t first, n;
	uint32_t *out;
	uint64_t row; /* where it stopped */
	struct stkd_extent extent;
};

static int read_lengths(void *arg)
{
	struct lengths_job *job = arg;

	for (uint64_t i = 0; i < job->n; i++) {
		int r;

		job->row = job->first + i;
		r = job->shard->format->row(job->shard, job->field, job->row, &job->extent);
		if (r < 0)
			return r;
		if (job->extent.count > UINT32_MAX)
			return -EOVERFLOW;
		job->out[i] = (uint32_t)job->extent.count;
	}
	return 0;
}

int stkd_shard_lengths(const struct stkd_shard *shard, uint32_t field, uint64_t first, uint64_t n,
		       uint32_t *out, struct stk_err *err)
{
	struct lengths_job job = {
		.shard = shard, .field = field, .first = first, .n = n, .out = out};
	const char *name = shard->fields[field].name;
	char label[STKD_LABEL_SIZE];
	const void *address = NULL;
	int r = stkd_guard_install();

	if (r < 0)
		return stk_err_set(err, r, "signal handler: %s", strerror(-r));
	r = stkd_guard_run(read_lengths, &job, &address);
	stkd_label(name, label);
	if (r == -EFAULT)
		return stk_err_set(
			err, -EBADMSG,
			"%s: byte %tu is gone: the file was cut, it had %" PRIu64 " bytes",
			shard->path, (const uint8_t *)address - shard->map, shard->file_size);
	if (r == -EOVERFLOW)
		return stk_err_set(err, -EBADMSG,
				   "%s: row %" PRIu64 " of field %s has %" PRIu64
				   " elements, allowed are %u",
				   shard->path, job.row, label, job.extent.count, UINT32_MAX);
	if (r < 0)
		return stk_err_set(err, r,
				   "%s: byte %tu: the offsets of row %" PRIu64
				   " of field %s were changed since the file was opened",
				   shard->path, (const uint8_t *)job.extent.data - shard->map,
				   job.row, label);
	return 0;
}

int stkd_shard_unchanged(const struct stkd_shard *shard, struct stk_err *err)
{
	struct stat st;

	if (stat(shard->path, &st) < 0)
		return stk_err_set(err, -EBADMSG, "%s: %m, it had %" PRIu64 " bytes at open",
				   shard->path, shard->file_size);
	if (st.st_dev != shard->dev || st.st_ino != shard->ino)
		return stk_err_set(err, -EBADMSG,
				   "%s: was replaced by another file since it was opened",
				   shard->path);
	if ((uint64_t)st.st_size != shard->file_size)
		return stk_err_set(err, -EBADMSG,
				   "%s: has %" PRIu64 " bytes, had %" PRIu64 " at open",
				   shard->path, (uint64_t)st.st_size, shard->file_size);
	return 0;
}
