/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of shards share: headers, shards that have to open, words of an error. */
#ifndef SHARD_FIXTURE_H
#define SHARD_FIXTURE_H

#include "daemon/shard/shard.h"
#include "tests/unit/shardfile.h"

static inline void assert_text(const struct stk_err *err, const char *wanted)
{
	if (strstr(err->text, wanted))
		return;
	print_error("error text: %s\nwanted in it: %s\n", err->text, wanted);
	fail();
}

static inline struct stkd_shard *opened(const char *path)
{
	struct stkd_shard *shard = NULL;
	struct stk_err err = {0};

	if (stkd_shard_open(path, NULL, &shard, &err) < 0) {
		print_error("%s\n", err.text);
		fail();
	}
	return shard;
}

static inline const char *tensor(char out[256], const char *dtype, const char *shape,
				 const char *offsets)
{
	snprintf(out, 256, "{\"t\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":%s}}", dtype,
		 shape, offsets);
	return out;
}

#define U8(name, size, begin, end)                                                                 \
	"\"" name "\":{\"dtype\":\"U8\",\"shape\":[" #size "],\"data_offsets\":[" #begin "," #end  \
	"]}"

#define test(f) cmocka_unit_test_setup_teardown(f, folder_setup, folder_teardown)

#endif
