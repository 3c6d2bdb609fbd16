/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream's spec: one flat set of keys, one table. The same keys serve the YAML config, attach
 * requests, KEY=VALUE words and Python's keyword arguments. A spec is plain data, immutable once
 * resolved; any thread may read it.
 */
#ifndef STK_PROTO_SPEC_H
#define STK_PROTO_SPEC_H

#include "proto/dtype.h"
#include "proto/keys.h"
#include "proto/spec_ops.h"
#include "proto/state.h"

#define STK_SPEC_EDGES_MAX  256
#define STK_SPEC_DATA_MAX   256 /* datasets of one stream */
#define STK_SPEC_FIELDS_MAX 60

enum stk_order { STK_ORDER_NONE, STK_ORDER_FULL, STK_ORDER_BLOCK };
enum stk_block_unit { STK_BLOCK_SAMPLES, STK_BLOCK_TOKENS };
enum stk_stop { STK_STOP_FIRST, STK_STOP_ALL, STK_STOP_NEVER };
enum stk_overlong {
	STK_OVERLONG_TRUNCATE,
	STK_OVERLONG_DROP,
	STK_OVERLONG_ERROR,
	STK_OVERLONG_SPLIT
};
enum stk_group { STK_GROUP_FIXED, STK_GROUP_BUCKET, STK_GROUP_PACK, STK_GROUP_CONCAT };
enum stk_balance { STK_BALANCE_NONE, STK_BALANCE_TOKENS, STK_BALANCE_COST };
enum stk_bucket_method {
	STK_BUCKET_OPTIMAL,
	STK_BUCKET_KMEANS,
	STK_BUCKET_QUANTILE,
	STK_BUCKET_UNIFORM,
};
enum stk_pad_to { STK_PAD_LONGEST, STK_PAD_EDGE };
enum stk_on_bad { STK_ON_BAD_ERROR, STK_ON_BAD_QUARANTINE };
enum stk_tail { STK_TAIL_SHORT, STK_TAIL_PAD, STK_TAIL_DROP };
enum stk_need { STK_NEED_TRY, STK_NEED_REQUIRE }; /* lock, numa */
enum stk_side { STK_SIDE_RIGHT, STK_SIDE_LEFT };  /* where the padding goes */
enum stk_make {
	STK_MAKE_COPY,        /* a stored field (from: name; default its own name) */
	STK_MAKE_MASK,        /* 1 for a real token, 0 for padding; of the length field or `from` */
	STK_MAKE_LENGTHS,     /* [rows] real lengths */
	STK_MAKE_SAMPLE_IDS,  /* [rows] sample ids, -1 for a masked row */
	STK_MAKE_SEGMENT_IDS, /* 1, 2, ... for the segments of a row, 0 for padding */
	STK_MAKE_POSITION_IDS,      /* place of each token, see enum stk_positions */
	STK_MAKE_CU_SEQLENS,        /* [segments + 1] sums of the segments' lengths, from 0 */
	STK_MAKE_CU_SEQLENS_PADDED, /* [segments + 1] where they begin among the batch's tokens */
	STK_MAKE_MAX_SEQLEN,        /* [1] length of the longest segment */
	STK_MAKE_RANDOM_KEY,        /* [rows] a number drawn from seed, epoch and sample id */
};
/* Where position ids begin again. */
enum stk_positions {
	STK_POSITIONS_RESTART, /* at each segment */
	STK_POSITIONS_SAMPLE,  /* at each sample: a later piece of it goes on */
	STK_POSITIONS_ROW,     /* at each row */
};

struct stk_spec_data {
	char *path; /* directory, file or glob; relative ones are made absolute by the parser's caller */
	uint64_t weight; /* parts per million; 1000000 is 1.0 */
};

enum stk_default_fields { STK_FIELDS_STORED, STK_FIELDS_TORCH };

struct stk_spec_field {
	char *name; /* in the batch */
	char *from; /* stored field; NULL: same as name (copy) or the length field (mask, lengths) */
	enum stk_make make;
	enum stk_dtype
		dtype; /* STK_DTYPE_NONE: as stored (copy); BOOL (mask); I32 (lengths); I64 (sample_ids) */
	bool pad_set;
	int64_t pad; /* pad value; fields of floats: see pad_float */
	double pad_float;
	enum stk_side side;
	enum stk_positions positions; /* position_ids */
	uint32_t start;               /* position_ids: the first one */
	bool separator_set;
	int64_t separator; /* copy: value behind each sample under separator: true; unset: pad */
	bool shift;        /* copy: each token is the next one of its sample, pad behind the last */
	struct stk_spec_ops ops; /* copy */
};

/* A batch of n rows as wide as `edge` costs n * (a * edge + b * edge^2), at most budget. */
struct stk_spec_cost {
	uint64_t a, b;   /* parts per million */
	uint64_t budget; /* 0: not given */
};

/* Samples that are left out, by their lengths as stored. */
struct stk_spec_keep {
	uint32_t min_length, max_length; /* of the (first) length field; max_length 0: none */
	char *over, *under;              /* ratio of these two fields; NULL: none */
	uint64_t ratio_min, ratio_max;   /* parts per million */
};

struct stk_spec {
	char *name; /* of a configured stream; NULL for a path spec */
	struct stk_spec_data *data;
	size_t ndata;
	uint64_t seed;
	uint64_t epochs;     /* 0: as many as asked for */
	int order;           /* enum stk_order */
	char *length;        /* length field; NULL: the only ragged field, else "input_ids" */
	uint32_t max_length; /* 0: the longest sample */
	int overlong;        /* enum stk_overlong */
	int group;           /* enum stk_group */
	uint32_t buckets;    /* number of edges to choose; ignored when edges are given */
	int bucket_method;
	uint32_t edges[STK_SPEC_EDGES_MAX]; /* ascending */
	size_t nedges;
	uint32_t rows;       /* per rank and micro-batch; 0 when tokens is given */
	uint64_t tokens;     /* padded tokens per rank and micro-batch; 0 when rows is given */
	uint32_t accumulate; /* micro-batches per step and rank */
	uint32_t multiple_of;
	int pad_to;            /* enum stk_pad_to */
	int tail;              /* enum stk_tail */
	int on_bad_sample;     /* enum stk_on_bad */
	uint32_t prefetch;     /* slots per feed */
	uint32_t weight;       /* share of a feed in the workers, at least 1 */
	uint32_t window;       /* pack: samples that are packed together, 0: a whole epoch */
	uint32_t segments_max; /* pack: segments of a row, 0: no limit */
	uint32_t align;        /* pack: segments begin at multiples of it */
	int balance;           /* pack, concat: enum stk_balance */
	bool flat;             /* pack: one row of `tokens` tokens for each batch */
	uint32_t overlap;      /* concat: tokens that a row shares with the next one, 0 or 1 */
	bool separator;        /* concat: one place behind each sample */
	char *length2;         /* the second length field; NULL: one length */
	uint32_t edges2[STK_SPEC_EDGES_MAX]; /* of the second length, beside edges; 0: one length */
	char *edges_file;                    /* until stk_spec_read_edges() */
	uint32_t rows_list[STK_SPEC_EDGES_MAX]; /* rows of each bucket, and rows is 0 */
	size_t nrows;
	struct stk_spec_cost cost; /* instead of rows */
	uint32_t global_rows;      /* instead of rows: of a step, all ranks and micro-batches */
	uint64_t global_tokens;    /* the same as a budget of padded tokens */
	uint32_t world_multiple;   /* with a global batch: rows of a step divide by it */
	uint32_t row_multiple;     /* rows of a batch divide by it */
	bool largest_first;        /* an epoch begins with a step of its largest class */
	struct stk_spec_keep keep;
	uint32_t block, block_window; /* order block: size of one, and how many are mixed */
	int block_unit;               /* enum stk_block_unit */
	int stop;                     /* of several datasets: enum stk_stop */
	bool allow_changed;           /* a state of other data or another spec is taken */
	int lock, numa; /* enum stk_need; -1: by kind of daemon (system require, private try) */
	struct stk_spec_field *fields; /* NULL: every field as stored, and attention_mask */
	size_t nfields;
	int default_fields; /* enum stk_default_fields: what fields: NULL means */
};

/* The tables, for man pages, stubs and completion. */
extern const struct stk_key_table stk_spec_table;
extern const struct stk_key_table stk_spec_field_table;

/**
 * stk_spec_parse() - a spec from a map
 * @base:  NULL for the defaults, else a spec whose keys hold unless @map gives them
 * @map:   may be NULL (only defaults)
 * @ret:   for stk_spec_free()
 *
 * Checks each key and the keys against each other: rows and tokens exclude one another, edges
 * ascend and end at max_length when both are given, overlong: truncate needs a max_length only if
 * edges end below the longest sample (the plan decides), field names are unique, pad fits dtype.
 *
 * Return: 0 or -EINVAL with place, key, value and what is allowed.
 */
int stk_spec_parse(const struct stk_spec *base, const struct stk_tree *map, struct stk_spec **ret,
		   struct stk_err *err);
struct stk_spec *stk_spec_free(struct stk_spec *spec);

/* Does one step have the same rows in each world that divides it? */
static inline bool stk_spec_is_global(const struct stk_spec *spec)
{
	return spec->global_rows || spec->global_tokens;
}

/**
 * stk_spec_read_edges() - replaces the name of a file by the edges in it
 *
 * For the daemon's own configuration, for its own user, and for tools: a spec from elsewhere must
 * not make it read files. Return: 0 (also when no file is named) or a negative errno.
 */
int stk_spec_read_edges(struct stk_spec *spec, struct stk_err *err);
/* The value of the key `edges`. New reference; NULL: no memory. */
json_t *stk_spec_edges_json(const struct stk_spec *spec);
STK_DEFINE_CLEANUP(struct stk_spec *, stk_spec_free)

/* All keys in table order, defaults included, so that parse(to_json(s)) equals s. New reference. */
json_t *stk_spec_to_json(const struct stk_spec *spec);

/* XXH3-128 of the canonical JSON of the STK_KEY_DIGEST keys; never paths, names or prefetch. */
int stk_spec_digest(const struct stk_spec *spec, struct stk_hash *ret);

/*
 * Short hashes of what the digest is made of, so that a state can tell which key differs: of each key
 * that counts its name and its value. Returns how many were written, at most 64.
 */
struct stk_spec_print {
	uint16_t name, value;
};
size_t stk_spec_prints(const struct stk_spec *spec, struct stk_spec_print ret[64]);
/* Of key number @i of the table: false when it is left out, and only its name is filled. */
bool stk_spec_print_key(const struct stk_spec *spec, size_t i, struct stk_spec_print *ret);
/*
 * The value of key number @i that a print holds, where it can only be one: of a choice, or left out.
 * @value: -1: left out. JSON text, for free(); NULL: the print does not say, or no memory.
 */
char *stk_spec_print_value(size_t i, int32_t value);
/* The value of a key as JSON text, for free(); NULL: no memory or no such key. */
char *stk_spec_value(const struct stk_spec *spec, const char *key);

/* The first digest key in which two specs differ, or NULL; *ret_a, *ret_b (free them) are its values as JSON. */
const char *stk_spec_difference(const struct stk_spec *a, const struct stk_spec *b, char **ret_a,
				char **ret_b);

const char *stk_need_name(int need);

#endif
