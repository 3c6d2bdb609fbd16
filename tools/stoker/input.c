/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/stoker/input.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "tools/stoker/stop.h"

#define RAW_SIZE       (256u << 10)
#define WINDOW_LOG_MAX 27 /* what the zstd tool accepts without --long */

/* A way to decode. step() moves bytes from raw to out: *ret_out of them, 0 when it needs more. */
struct codec {
	const char *name;
	int (*open)(struct input *input, struct stk_err *err);
	int (*step)(struct input *input, uint8_t *out, size_t room, size_t *ret_out,
		    struct stk_err *err);
	void (*close)(struct input *input);
};

struct input {
	char *name;
	int fd, stop_fd;
	const struct codec *codec;
	uint8_t *raw; /* RAW_SIZE bytes as read; [raw_pos, raw_end) is not decoded yet */
	size_t raw_pos, raw_end;
	bool raw_eof;
	uint64_t raw_total;
	bool whole; /* the decoder stands between two frames: an end is allowed here */
	union {
		z_stream gzip;
		ZSTD_DCtx *zstd;
	};
	uint8_t *text; /* decoded; [text_pos, text_end) was not returned yet */
	size_t text_pos, text_end, text_size;
	bool text_eof;
	size_t line_max;
	uint64_t line;
};

static int refill(struct input *input, struct stk_err *err)
{
	ssize_t n;
	int r;

	do {
		r = stop_or_readable(input->stop_fd, input->fd, err);
		if (r < 0)
			return stk_err_prefix(err, "%s: ", input->name);
		n = read(input->fd, input->raw + input->raw_end, RAW_SIZE - input->raw_end);
	} while (n < 0 && (errno == EINTR || errno == EAGAIN));
	if (n < 0)
		return stk_err_set(err, -errno, "cannot read %s: %m", input->name);
	input->raw_eof = n == 0;
	input->raw_end += (size_t)n;
	input->raw_total += (size_t)n;
	return 0;
}

static int plain_open(struct input *input, struct stk_err *err)
{
	(void)err;
	input->whole = true;
	return 0;
}

static int plain_step(struct input *input, uint8_t *out, size_t room, size_t *ret_out,
		      struct stk_err *err)
{
	size_t n = STK_MIN(room, input->raw_end - input->raw_pos);

	(void)err;
	memcpy(out, input->raw + input->raw_pos, n);
	input->raw_pos += n;
	*ret_out = n;
	return 0;
}

static void plain_close(struct input *input)
{
	(void)input;
}

static int gzip_open(struct input *input, struct stk_err *err)
{
	if (inflateInit2(&input->gzip, 15 + 16) != Z_OK) /* 16: a gzip header, nothing else */
		return stk_err_set(err, -ENOMEM, "%s: no memory for gzip", input->name);
	return 0;
}

static int gzip_step(struct input *input, uint8_t *out, size_t room, size_t *ret_out,
		     struct stk_err *err)
{
	z_stream *z = &input->gzip;
	int r;

	*ret_out = 0;
	if (input->whole) {
		if (input->raw_pos == input->raw_end)
			return 0;
		inflateReset(z); /* another member follows */
	}
	z->next_in = input->raw + input->raw_pos;
	z->avail_in = (uInt)(input->raw_end - input->raw_pos);
	z->next_out = out;
	z->avail_out = (uInt)STK_MIN(room, (size_t)1 << 30);
	r = inflate(z, Z_NO_FLUSH);
	input->raw_pos = input->raw_end - z->avail_in;
	*ret_out = (size_t)(z->next_out - out);
	if (r != Z_OK && r != Z_STREAM_END && r != Z_BUF_ERROR)
		return stk_err_set(err, -EBADMSG, "damaged gzip data near byte %" PRIu64 ": %s",
				   input->raw_total - z->avail_in, z->msg ? z->msg : zError(r));
	input->whole = r == Z_STREAM_END;
	return 0;
}

static void gzip_close(struct input *input)
{
	inflateEnd(&input->gzip);
}

static int zstd_open(struct input *input, struct stk_err *err)
{
	input->zstd = ZSTD_createDCtx();
	if (!input->zstd)
		return stk_err_set(err, -ENOMEM, "%s: no memory for zstd", input->name);
	ZSTD_DCtx_setParameter(input->zstd, ZSTD_d_windowLogMax, WINDOW_LOG_MAX);
	return 0;
}

static int zstd_step(struct input *input, uint8_t *out, size_t room, size_t *ret_out,
		     struct stk_err *err)
{
	ZSTD_inBuffer in = {input->raw + input->raw_pos, input->raw_end - input->raw_pos, 0};
	ZSTD_outBuffer o = {out, room, 0};
	size_t r;

	*ret_out = 0;
	if (input->whole && !in.size)
		return 0;
	r = ZSTD_decompressStream(input->zstd, &o, &in);
	input->raw_pos += in.pos;
	*ret_out = o.pos;
	if (ZSTD_isError(r))
		return stk_err_set(err, -EBADMSG, "damaged zstd data near byte %" PRIu64 ": %s%s",
				   input->raw_total - (input->raw_end - input->raw_pos),
				   ZSTD_getErrorName(r),
				   ZSTD_getErrorCode(r) == ZSTD_error_frameParameter_windowTooLarge
					   ? " (windows up to 128 MiB are accepted)"
					   : "");
	input->whole = r == 0;
	return 0;
}

static void zstd_close(struct input *input)
{
	ZSTD_freeDCtx(input->zstd);
}

static const struct codec plain = {"text", plain_open, plain_step, plain_close};
static const struct codec gzip = {"gzip", gzip_open, gzip_step, gzip_close};
static const struct codec zstd = {"zstd", zstd_open, zstd_step, zstd_close};

static const struct {
	const char *magic;
	size_t size;
	const struct codec *codec; /* NULL: refused as what */
	const char *what;
} magics[] = {
	{"\x1f\x8b", 2, &gzip, NULL},
	{"\x28\xb5\x2f\xfd", 4, &zstd, NULL},
	{"BZh", 3, NULL, "bzip2 data"},
	{"\xfd"
	 "7zXZ",
	 5, NULL, "xz data"},
	{"PK\3\4", 4, NULL, "a zip archive"},
	{"PAR1", 4, NULL, "a Parquet file"},
	{"ARROW1", 6, NULL, "an Arrow file"},
	{"\xff\xfe", 2, NULL, "UTF-16 text"},
	{"\xfe\xff", 2, NULL, "UTF-16 text"},
	{"version https://git-lfs", 23, NULL, "a git-lfs pointer (run git lfs pull)"},
};

/* Reads the first bytes and chooses the codec by them. */
static int recognise(struct input *input, struct stk_err *err)
{
	const uint8_t *head = input->raw;
	int r;

	while (input->raw_end < 32 && !input->raw_eof) {
		r = refill(input, err);
		if (r < 0)
			return r;
	}
	input->codec = &plain;
	for (size_t i = 0; i < STK_ARRAY_SIZE(magics); i++) {
		if (input->raw_end < magics[i].size ||
		    memcmp(head, magics[i].magic, magics[i].size))
			continue;
		if (!magics[i].codec)
			return stk_err_set(err, -EBADMSG,
					   "%s is %s; JSON Lines are read plain, gzip or zstd",
					   input->name, magics[i].what);
		input->codec = magics[i].codec;
	}
	/* A zstd file may begin with a skippable frame: 50..5f 2a 4d 18. */
	if (input->raw_end >= 4 && head[0] >> 4 == 5 && !memcmp(head + 1, "\x2a\x4d\x18", 3))
		input->codec = &zstd;
	r = input->codec->open(input, err);
	if (r < 0)
		input->codec = NULL;
	return r;
}

static int open_file(struct input *input, const char *path, struct stk_err *err)
{
	struct stat st;

	input->fd = !strcmp(path, "-") ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
				       : open(path, O_RDONLY | O_CLOEXEC);
	if (input->fd < 0)
		return stk_err_set(err, -errno, "cannot open %s: %m", input->name);
	if (fstat(input->fd, &st) == 0 && S_ISDIR(st.st_mode))
		return stk_err_set(err, -EISDIR, "cannot read %s: it is a directory", input->name);
	return 0;
}

int input_open(const char *path, size_t line_max, int stop_fd, struct input **ret,
	       struct stk_err *err)
{
	_cleanup_(input_freep) struct input *input = calloc(1, sizeof(*input));
	int r;

	if (!input)
		return stk_err_set(err, -ENOMEM, "%s: no memory", path);
	*input = (struct input){.fd = -1, .stop_fd = stop_fd, .line_max = line_max};
	input->name = strdup(strcmp(path, "-") ? path : "standard input");
	input->raw = malloc(RAW_SIZE);
	input->text_size = RAW_SIZE;
	input->text = malloc(input->text_size);
	if (!input->name || !input->raw || !input->text)
		return stk_err_set(err, -ENOMEM, "%s: no memory", path);
	r = open_file(input, path, err);
	if (r < 0)
		return r;
	r = recognise(input, err);
	if (r < 0)
		return r;
	*ret = STK_STEAL(input);
	return 0;
}

struct input *input_free(struct input *input)
{
	if (!input)
		return NULL;
	if (input->codec)
		input->codec->close(input);
	stk_close(input->fd);
	free(input->name);
	free(input->raw);
	free(input->text);
	free(input);
	return NULL;
}

/* Makes room behind text_end: moves what is left to the front, then doubles. */
static int make_room(struct input *input, struct stk_err *err)
{
	uint8_t *bigger;

	memmove(input->text, input->text + input->text_pos, input->text_end - input->text_pos);
	input->text_end -= input->text_pos;
	input->text_pos = 0;
	if (input->text_end < input->text_size)
		return 0;
	bigger = realloc(input->text, input->text_size * 2);
	if (!bigger)
		return stk_err_set(err, -ENOMEM, "no memory for a line of %zu bytes",
				   input->text_size);
	input->text = bigger;
	input->text_size *= 2;
	return 0;
}

/* Decodes at least one byte more, or finds the end. */
static int more_text(struct input *input, struct stk_err *err)
{
	size_t n = 0;
	int r = make_room(input, err);

	while (r == 0 && n == 0) {
		if (input->raw_pos == input->raw_end && !input->raw_eof) {
			input->raw_pos = input->raw_end = 0;
			r = refill(input, err);
			if (r < 0)
				return r;
		}
		r = input->codec->step(input, input->text + input->text_end,
				       input->text_size - input->text_end, &n, err);
		if (r == 0 && n == 0 && input->raw_eof && input->raw_pos == input->raw_end) {
			if (!input->whole)
				return stk_err_set(
					err, -EBADMSG,
					"truncated: the %s data ends in its middle, after %" PRIu64
					" bytes",
					input->codec->name, input->raw_total);
			input->text_eof = true;
			return 0;
		}
	}
	input->text_end += n;
	return r;
}

/* [start, text_pos) of the text is a line that was just taken. */
static void give_line(struct input *input, size_t start, size_t size, const char **ret_line,
		      size_t *ret_size)
{
	const uint8_t *line = input->text + start;

	if (size && line[size - 1] == '\r')
		size--;
	/* A byte order mark in front of the first line is no part of it. */
	if (input->line == 1 && size >= 3 && !memcmp(line, "\xef\xbb\xbf", 3)) {
		line += 3;
		size -= 3;
	}
	*ret_line = (const char *)line;
	*ret_size = size;
}

int input_line(struct input *input, const char **ret_line, size_t *ret_size, struct stk_err *err)
{
	size_t seen = 0; /* bytes behind text_pos that hold no newline */
	int r;

	input->line++;
	for (;;) {
		uint8_t *start = input->text + input->text_pos;
		size_t have = input->text_end - input->text_pos;
		uint8_t *end = have > seen ? memchr(start + seen, '\n', have - seen) : NULL;
		size_t size = end ? (size_t)(end - start) : have;

		if (size > input->line_max)
			return stk_err_set(err, -EBADMSG,
					   "%s:%" PRIu64 ": longer than %zu bytes (--line-limit)",
					   input->name, input->line, input->line_max);
		if (end || (input->text_eof && have)) {
			give_line(input, input->text_pos, size, ret_line, ret_size);
			input->text_pos += size + (end ? 1 : 0);
			return 1;
		}
		if (input->text_eof) {
			input->line--;
			return 0;
		}
		seen = have;
		r = more_text(input, err);
		if (r == -EBADMSG || r == -ENOMEM)
			stk_err_prefix(err, "%s:%" PRIu64 ": ", input->name, input->line);
		if (r < 0)
			return r;
	}
}

const char *input_name(const struct input *input)
{
	return input->name;
}

uint64_t input_line_number(const struct input *input)
{
	return input->line;
}

uint64_t input_bytes(const struct input *input)
{
	return input->raw_total;
}
