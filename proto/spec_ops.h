/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transforms of a field: what the keys scale, bias, clamp, modulo, range, where, crop, flip and
 * transpose hold. Parsed here, compiled by the assembly. Plain data, any thread.
 */
#ifndef STK_PROTO_SPEC_OPS_H
#define STK_PROTO_SPEC_OPS_H

#include "proto/keys.h"

#define STK_SPEC_CHANNELS_MAX 128
#define STK_SPEC_AXES_MAX     8

/* What happens where the target type cannot hold a value; REFUSE: at attach. */
enum stk_range { STK_RANGE_REFUSE, STK_RANGE_ERROR, STK_RANGE_SATURATE, STK_RANGE_WRAP };
enum stk_channel { STK_CHANNEL_LAST, STK_CHANNEL_FIRST };
enum stk_crop_at { STK_CROP_CENTRE, STK_CROP_RANDOM };
enum stk_flip { STK_FLIP_NONE, STK_FLIP_RANDOM };

struct stk_spec_ops {
	uint32_t nscale, nbias; /* 0: not given; 1: one for all; else one for each channel */
	double scale[STK_SPEC_CHANNELS_MAX], bias[STK_SPEC_CHANNELS_MAX];
	int channel; /* enum stk_channel: the dimension of the stored sample that lists are of */
	bool clamp_set;
	double clamp[2];
	uint64_t modulo;     /* 0: none */
	int range;           /* enum stk_range */
	char *where;         /* stored field; padding where it is 0. NULL: none */
	uint32_t crop[2];    /* height, width; 0: none */
	int crop_at;         /* enum stk_crop_at */
	int flip;            /* enum stk_flip */
	uint32_t ntranspose; /* 0: not given */
	uint32_t transpose[STK_SPEC_AXES_MAX];
};

/* Parsers and printers for the key table of fields; @object is the struct stk_spec_ops. */
int stk__ops_parse_scale(void *object, const struct stk_tree *node, struct stk_err *err);
int stk__ops_parse_bias(void *object, const struct stk_tree *node, struct stk_err *err);
int stk__ops_parse_clamp(void *object, const struct stk_tree *node, struct stk_err *err);
int stk__ops_parse_crop(void *object, const struct stk_tree *node, struct stk_err *err);
int stk__ops_parse_transpose(void *object, const struct stk_tree *node, struct stk_err *err);
json_t *stk__ops_scale_to_json(const void *object);
json_t *stk__ops_bias_to_json(const void *object);
json_t *stk__ops_clamp_to_json(const void *object);
json_t *stk__ops_crop_to_json(const void *object);
json_t *stk__ops_transpose_to_json(const void *object);

/* The first key that is given, as it is written; NULL: there is no transform. */
const char *stk_spec_ops_given(const struct stk_spec_ops *ops);

#endif
