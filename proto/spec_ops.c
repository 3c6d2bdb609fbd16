/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/spec_ops.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "proto/spec.h"

static struct stk_spec_ops *ops_of(void *object)
{
	return &((struct stk_spec_field *)object)->ops;
}

static const struct stk_spec_ops *const_ops_of(const void *object)
{
	return &((const struct stk_spec_field *)object)->ops;
}

/* One finite number, or a list of 1 to max. */
static int parse_numbers(const struct stk_tree *node, uint32_t max, double *ret, uint32_t *ret_n,
			 struct stk_err *err)
{
	bool list = node->type == STK_TREE_LIST;
	size_t n = list ? node->nchildren : 1;

	*ret_n = 0;
	memset(ret, 0, max * sizeof(ret[0]));
	if (node->type == STK_TREE_NULL)
		return 0;
	if (!n || n > max)
		return stk_tree_refuse(node, err, "a number or a list of 1 to %u", max);
	for (size_t i = 0; i < n; i++) {
		const struct stk_tree *value = list ? node->children[i] : node;

		if (!stk_tree_number(value, &ret[i]) || !isfinite(ret[i]))
			return stk_tree_refuse(value, err, "a finite number");
	}
	*ret_n = (uint32_t)n;
	return 0;
}

static json_t *numbers_to_json(const double *values, uint32_t n)
{
	json_t *list;

	if (!n)
		return json_null();
	if (n == 1)
		return json_real(values[0]);
	list = json_array();
	for (uint32_t i = 0; i < n; i++)
		json_array_append_new(list, json_real(values[i]));
	return list;
}

int stk__ops_parse_scale(void *object, const struct stk_tree *node, struct stk_err *err)
{
	struct stk_spec_ops *ops = ops_of(object);

	return parse_numbers(node, STK_SPEC_CHANNELS_MAX, ops->scale, &ops->nscale, err);
}

int stk__ops_parse_bias(void *object, const struct stk_tree *node, struct stk_err *err)
{
	struct stk_spec_ops *ops = ops_of(object);

	return parse_numbers(node, STK_SPEC_CHANNELS_MAX, ops->bias, &ops->nbias, err);
}

int stk__ops_parse_clamp(void *object, const struct stk_tree *node, struct stk_err *err)
{
	struct stk_spec_ops *ops = ops_of(object);
	uint32_t n;
	int r = parse_numbers(node, 2, ops->clamp, &n, err);

	ops->clamp_set = false;
	if (r < 0)
		return r;
	if (node->type == STK_TREE_NULL)
		return 0;
	if (n != 2 || ops->clamp[0] > ops->clamp[1])
		return stk_tree_refuse(node, err,
				       "two numbers such as [0, 1], the smaller one first");
	ops->clamp_set = true;
	return 0;
}

/* A list of n to max whole numbers. */
static int parse_wholes(const struct stk_tree *node, uint32_t min, uint32_t max, uint64_t low,
			uint64_t high, uint32_t *ret, uint32_t *ret_n, const char *wanted,
			struct stk_err *err)
{
	*ret_n = 0;
	memset(ret, 0, max * sizeof(ret[0]));
	if (node->type == STK_TREE_NULL)
		return 0;
	if (node->type != STK_TREE_LIST || node->nchildren < min || node->nchildren > max)
		return stk_tree_refuse(node, err, "%s", wanted);
	for (size_t i = 0; i < node->nchildren; i++) {
		uint64_t value;

		if (stk_tree_u64(node->children[i], low, high, &value, NULL) < 0)
			return stk_tree_refuse(node, err, "%s", wanted);
		ret[i] = (uint32_t)value;
	}
	*ret_n = (uint32_t)node->nchildren;
	return 0;
}

static json_t *wholes_to_json(const uint32_t *values, uint32_t n)
{
	json_t *list = n ? json_array() : json_null();

	for (uint32_t i = 0; i < n; i++)
		json_array_append_new(list, json_integer(values[i]));
	return list;
}

int stk__ops_parse_crop(void *object, const struct stk_tree *node, struct stk_err *err)
{
	uint32_t n;

	return parse_wholes(node, 2, 2, 1, 1u << 24, ops_of(object)->crop, &n,
			    "a height and a width such as [224, 224]", err);
}

int stk__ops_parse_transpose(void *object, const struct stk_tree *node, struct stk_err *err)
{
	static const char wanted[] = "each axis of the sample once, from 0, such as [2, 0, 1]";
	struct stk_spec_ops *ops = ops_of(object);
	uint32_t seen = 0;
	int r = parse_wholes(node, 1, STK_SPEC_AXES_MAX, 0, STK_SPEC_AXES_MAX - 1, ops->transpose,
			     &ops->ntranspose, wanted, err);

	for (uint32_t i = 0; r == 0 && i < ops->ntranspose; i++)
		seen |= 1u << ops->transpose[i];
	if (r == 0 && seen != (1u << ops->ntranspose) - 1)
		return stk_tree_refuse(node, err, "%s", wanted);
	return r;
}

json_t *stk__ops_scale_to_json(const void *object)
{
	const struct stk_spec_ops *ops = const_ops_of(object);

	return numbers_to_json(ops->scale, ops->nscale);
}

json_t *stk__ops_bias_to_json(const void *object)
{
	const struct stk_spec_ops *ops = const_ops_of(object);

	return numbers_to_json(ops->bias, ops->nbias);
}

json_t *stk__ops_clamp_to_json(const void *object)
{
	const struct stk_spec_ops *ops = const_ops_of(object);

	return numbers_to_json(ops->clamp, ops->clamp_set ? 2 : 0);
}

json_t *stk__ops_crop_to_json(const void *object)
{
	const struct stk_spec_ops *ops = const_ops_of(object);

	return wholes_to_json(ops->crop, ops->crop[0] ? 2 : 0);
}

json_t *stk__ops_transpose_to_json(const void *object)
{
	const struct stk_spec_ops *ops = const_ops_of(object);

	return wholes_to_json(ops->transpose, ops->ntranspose);
}

const char *stk_spec_ops_given(const struct stk_spec_ops *ops)
{
	const struct {
		const char *name;
		bool given;
	} keys[] = {
		{"scale", ops->nscale},
		{"bias", ops->nbias},
		{"clamp", ops->clamp_set},
		{"modulo", ops->modulo},
		{"range", ops->range != STK_RANGE_REFUSE},
		{"where", ops->where},
		{"crop", ops->crop[0]},
		{"flip", ops->flip != STK_FLIP_NONE},
		{"transpose", ops->ntranspose},
	};

	for (size_t i = 0; i < STK_ARRAY_SIZE(keys); i++)
		if (keys[i].given)
			return keys[i].name;
	return NULL;
}
