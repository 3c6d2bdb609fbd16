/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One table of magic bytes, then a look at text. Constant data, any thread.
 */
#include "daemon/shard/filetype.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#define MAGIC(name, at, bytes)                                                                     \
	{                                                                                          \
		name, at, sizeof(bytes) - 1, bytes                                                 \
	}

static const struct {
	const char *name;
	uint16_t at, size;
	const char *bytes;
} magics[] = {
	MAGIC("git-lfs pointer (the data was not pulled: git lfs pull)", 0,
	      "version https://git-lfs"),
	MAGIC("zip archive (PyTorch file, .npz or the like)", 0, "PK\x03\x04"),
	MAGIC("zip archive (empty)", 0, "PK\x05\x06"),
	MAGIC("gzip file", 0, "\x1f\x8b"),
	MAGIC("zstd frame", 0, "\x28\xb5\x2f\xfd"),
	MAGIC("xz file", 0, "\xfd\x37zXZ"),
	MAGIC("bzip2 file", 0, "BZh"),
	MAGIC("lz4 frame", 0, "\x04\x22\x4d\x18"),
	MAGIC("NumPy .npy array", 0, "\x93NUMPY"),
	MAGIC("Arrow file", 0, "ARROW1"),
	MAGIC("Arrow stream", 0, "\xff\xff\xff\xff"),
	MAGIC("Parquet file", 0, "PAR1"),
	MAGIC("HDF5 file", 0, "\x89HDF\r\n"),
	MAGIC("GGUF model", 0, "GGUF"),
	MAGIC("Megatron or fairseq .idx index", 0, "MMIDIDX"),
	MAGIC("LitData chunk", 0, "LITPKDS"),
	MAGIC("SQLite database", 0, "SQLite format 3"),
	MAGIC("PDF document", 0, "%PDF-"),
	MAGIC("Python pickle (old PyTorch file)", 0, "\x80\x02"),
	MAGIC("Python pickle", 0, "\x80\x04\x95"),
	MAGIC("tar archive", 257, "ustar"),
};

static bool starts_with(const char *text, size_t size, const char *word)
{
	return size >= strlen(word) && !strncasecmp(text, word, strlen(word));
}

static const char *text_name(const char *text, size_t size)
{
	while (size && isspace((unsigned char)*text)) {
		text++;
		size--;
	}
	if (starts_with(text, size, "<!doctype html") || starts_with(text, size, "<html"))
		return "HTML page (a failed download?)";
	if (starts_with(text, size, "<?xml"))
		return "XML document (a failed download?)";
	if (size && (*text == '{' || *text == '['))
		return "JSON text";
	for (size_t i = 0; i < size; i++)
		if (!isprint((unsigned char)text[i]) && !isspace((unsigned char)text[i]))
			return NULL;
	return size ? "plain text" : NULL;
}

const char *stkd_filetype_name(const uint8_t *head, size_t size)
{
	for (size_t i = 0; i < STK_ARRAY_SIZE(magics); i++)
		if (size >= (size_t)magics[i].at + magics[i].size &&
		    !memcmp(head + magics[i].at, magics[i].bytes, magics[i].size))
			return magics[i].name;
	if (size >= 4 && (head[0] & 0xf0) == 0x50 && !memcmp(head + 1, "\x2a\x4d\x18", 3))
		return "zstd skippable frame";
	return text_name((const char *)head, size);
}
