/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where fields lie in a slot, and how they are described to clients. Pure: the same rows and width
 * give the same layout, always. Any thread.
 */
#include <errno.h>
#include <string.h>

#include "daemon/assemble/fields.h"

/* Takes `size` bytes at the next multiple of `align`, a power of two. True when that does not fit. */
static bool take(uint64_t *end, uint64_t align, uint64_t size, uint64_t *ret_offset)
{
	uint64_t start;

	if (stk_add_overflow(*end, align - 1, &start))
		return true;
	*ret_offset = start & ~(align - 1);
	return stk_add_overflow(*ret_offset, size, end);
}

/* Leading dimensions of fields that are ragged, and of others. */
struct lead {
	uint32_t rows, items; /* segments where rows are packed, else rows, too */
	uint32_t width, width2;
};

static bool place_field(const struct stkd_op *op, const struct lead *lead, uint64_t *end,
			struct stk_shm_field *ret)
{
	uint64_t size = op->size;
	uint32_t rows = op->ragged ? lead->rows : op->once ? 1 : lead->items + op->extra;

	*ret = (struct stk_shm_field){.nlead = 1, .lead = {rows}};
	if (op->ragged) {
		ret->nlead = 2;
		ret->lead[1] = op->aligned ? lead->width : op->aligned2 ? lead->width2 : op->width;
		if (stk_mul_overflow(size, (uint64_t)ret->lead[1], &size))
			return true;
	}
	if (stk_mul_overflow(size, (uint64_t)rows, &size))
		return true;
	ret->size = size;
	return take(end, STK_SHM_FIELD_ALIGN, size, &ret->offset);
}

static int place_all(const struct stkd_assembly *assembly, const struct lead *lead,
		     struct stkd_layout *ret)
{
	uint64_t end = 0;

	/* In place, and only the fields there are: it is done for each batch. */
	for (uint32_t i = 0; i < assembly->nops; i++)
		if (place_field(&assembly->ops[i], lead, &end, &ret->fields[i]))
			return -EOVERFLOW;
	ret->extent_size = end;
	ret->from_off = ret->row_first_off = 0;
	if (take(&end, STK_SHM_FIELD_ALIGN, (uint64_t)lead->items * sizeof(uint64_t),
		 &ret->ids_off) ||
	    take(&end, sizeof(uint32_t), (uint64_t)lead->items * sizeof(uint32_t),
		 &ret->lengths_off))
		return -EOVERFLOW;
	ret->size = end;
	return 0;
}

int stkd_assembly_layout(const struct stkd_assembly *assembly, uint32_t rows, uint32_t width,
			 uint32_t width2, struct stkd_layout *ret)
{
	return place_all(assembly, &(struct lead){rows, rows, width, width2}, ret);
}

int stkd_assembly_layout_packed(const struct stkd_assembly *assembly, uint32_t rows, uint32_t width,
				uint32_t nsegments, struct stkd_layout *ret)
{
	int r;

	/* Sums of lengths are numbers of 32 bits with a sign. */
	if ((uint64_t)rows * width > INT32_MAX || nsegments == UINT32_MAX)
		return -EOVERFLOW;
	r = place_all(assembly, &(struct lead){rows, nsegments, width, 0}, ret);
	if (r < 0)
		return r;
	if (take(&ret->size, sizeof(uint32_t), (uint64_t)nsegments * sizeof(uint32_t),
		 &ret->from_off) ||
	    take(&ret->size, sizeof(uint32_t), ((uint64_t)rows + 1) * sizeof(uint32_t),
		 &ret->row_first_off))
		return -EOVERFLOW;
	return 0;
}

static const char *kind_of(const struct stkd_assembly *assembly, const struct stkd_op *op)
{
	if (op->ragged)
		return "ragged";
	if (op->once)
		return "batch";
	if (op->extra)
		return "sums";
	if (assembly->packed)
		return "segment";
	return op->make == STK_MAKE_COPY ? "fixed" : "row";
}

json_t *stkd_assembly_schema(const struct stkd_assembly *assembly)
{
	json_t *schema = json_array();

	for (uint32_t i = 0; i < assembly->nops; i++) {
		const struct stkd_op *op = &assembly->ops[i];
		json_t *shape = json_array();

		for (uint32_t d = 0; d < op->ndims; d++)
			json_array_append_new(shape, json_integer((json_int_t)op->inner[d]));
		/* Takes over the shape, and NULL for no memory makes it fail. */
		if (json_array_append_new(schema,
					  json_pack("{s:s, s:s, s:s, s:o}", "name", op->name,
						    "dtype", stk_dtype_name(op->to), "kind",
						    kind_of(assembly, op), "shape", shape)) < 0) {
			json_decref(schema);
			return NULL;
		}
	}
	return schema;
}
