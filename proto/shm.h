/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared-memory layout: control file (daemon writes, clients read), slots file (data), seat
 * file (one consumer writes). LAYOUT.md draws it byte by byte; the asserts below hold both to it.
 * All sizes and offsets are bytes from the start of the file, little-endian, fixed width.
 */
#ifndef STK_PROTO_SHM_H
#define STK_PROTO_SHM_H

#include <assert.h>
#include <stdalign.h>
#include <stdatomic.h>

#include "proto/base.h"
#include "proto/err.h"

#define STK_SHM_MAGIC_CONTROL UINT32_C(0x434b5453) /* "STKC"; also betrays a foreign byte order */
#define STK_SHM_MAGIC_SEAT    UINT32_C(0x534b5453) /* "STKS" */
#define STK_SHM_MAJOR         1
#define STK_SHM_MINOR         0

#define STK_SHM_MAX_SLOTS   UINT32_C(1024)
#define STK_SHM_MAX_FIELDS  UINT32_C(64)
#define STK_SHM_MAX_SEATS   UINT32_C(64)
#define STK_SHM_CURSOR_MAX  UINT32_C(1024)
#define STK_SHM_ERROR_SIZE  UINT32_C(1024)
#define STK_SHM_FIELD_ALIGN UINT32_C(256) /* of each field in a slot, and of a batch descriptor */
#define STK_SHM_NO_SLOT     UINT32_MAX

/* Kinds of publish entries; ERROR and STREAM_END are final. */
enum stk_shm_kind {
	STK_SHM_BATCH = 1,
	STK_SHM_EPOCH_END = 2,
	STK_SHM_STREAM_END = 3,
	STK_SHM_ERROR = 4,
};

/* What the slot memory is; later releases add device memory. */
enum stk_shm_memory { STK_SHM_MEMORY_HOST = 0 };

/* need_kick: 1 + the seat that tells of its releases, several at a time; or all seats tell of each. */
enum { STK_SHM_KICK_SEAT = 0xff, STK_SHM_KICK_AT_ONCE = 0x100 };

/* Bits of the wait word in a seat file. */
enum { STK_SHM_WAIT_FUTEX = 1, STK_SHM_WAIT_FD = 2 };

/* One entry of the publish ring. Plain stores; the ring's tail orders them (ring.h, P1). */
struct stk_shm_entry {
	uint32_t kind; /* enum stk_shm_kind */
	uint32_t slot; /* STK_SHM_NO_SLOT unless kind is BATCH; also the index of its descriptor */
	uint32_t era;  /* starts at 0, one more with each seek; entries of older eras are skipped */
	uint32_t micro; /* micro-batch within the step; ERROR: a positive errno */
	uint64_t epoch;
	uint64_t step; /* global step within the epoch; EPOCH_END: steps the epoch had */
};
static_assert(sizeof(struct stk_shm_entry) == 32, "ABI: bump STK_SHM_MAJOR");

/* First page of the control file. */
struct stk_shm_control {
	/* stokerd fills these before `ready`; read-only afterwards. */
	alignas(128) uint32_t magic; /* STK_SHM_MAGIC_CONTROL */
	uint16_t major, minor;       /* readers refuse another major, accept any minor */
	uint32_t header_size;        /* sizeof(struct stk_shm_control) */
	uint32_t nslots;
	uint32_t
		ring_entries; /* power of two, at least 2 * nslots + 2; of publish and release ring */
	uint32_t nfields;
	uint32_t desc_size; /* of one descriptor with its fields; multiple of 256 */
	uint32_t nclasses;
	uint64_t ring_off;                /* publish ring: ring_entries * 32 bytes */
	uint64_t desc_off;                /* nslots descriptors of desc_size */
	uint64_t error_off;               /* STK_SHM_ERROR_SIZE bytes of UTF-8, zero-terminated */
	uint64_t schema_off, schema_size; /* JSON text, see LAYOUT.md; not terminated */
	uint64_t state_off, state_size; /* state header (state.h); a cursor follows it in a state */
	uint64_t file_size;             /* of the control file */
	uint64_t slot_size;       /* stride of slots in the slots file; multiple of the page */
	uint64_t slots_file_size; /* nslots * slot_size */
	uint32_t rank, world;
	uint32_t replicas, micros;
	uint64_t start_off;     /* cursor of the stream's beginning */
	uint32_t start_size;    /* 0: an older daemon */
	uint32_t reserved0[5];  /* zero; gains a meaning with a minor bump */
	_Atomic uint32_t ready; /* stored last, with release; 0 while being built */
	/* stokerd's line, with the tail of the publish ring: only the daemon stores here. */
	alignas(128) _Atomic uint32_t tail; /* entries published since the feed began; futex word */
	_Atomic uint32_t need_kick;         /* 0: a slot is free; else who kicks, STK_SHM_KICK_* */
	_Atomic uint64_t published;         /* batches published, for the eye only */
	_Atomic uint64_t beat_ns;           /* CLOCK_MONOTONIC of the last publish */
	_Atomic uint32_t cpu; /* 1 + the CPU of the last publish, a hint; 0: not known */
	uint32_t reserved1[23];
};
static_assert(offsetof(struct stk_shm_control, ring_off) == 32, "ABI: bump STK_SHM_MAJOR");
static_assert(offsetof(struct stk_shm_control, rank) == 112, "ABI: bump STK_SHM_MAJOR");
static_assert(offsetof(struct stk_shm_control, start_off) == 128, "ABI: bump STK_SHM_MAJOR");
static_assert(offsetof(struct stk_shm_control, ready) == 160, "ABI: bump STK_SHM_MAJOR");
static_assert(offsetof(struct stk_shm_control, tail) == 256, "ABI: bump STK_SHM_MAJOR");
static_assert(sizeof(struct stk_shm_control) == 384, "ABI: bump STK_SHM_MAJOR");

/* Where one field lies in its slot. Shape is lead[0..nlead) followed by the schema's inner shape. */
struct stk_shm_field {
	uint64_t offset; /* from the start of the slot; multiple of STK_SHM_FIELD_ALIGN */
	uint64_t size;   /* bytes */
	uint32_t nlead;  /* 1: [rows] or [n]; 2: [rows, width] */
	uint32_t lead[2];
	uint32_t reserved;
};
static_assert(sizeof(struct stk_shm_field) == 32, "ABI: bump STK_SHM_MAJOR");

/*
 * A batch descriptor: this, then nfields of struct stk_shm_field. Written by the daemon before the
 * entry that names its slot is published; stable until every seat has released the slot.
 */
struct stk_shm_desc {
	uint32_t slot, era;
	uint64_t epoch, step;
	uint32_t micro;
	uint32_t flags;         /* STK_SHM_DESC_* */
	uint32_t memory;        /* enum stk_shm_memory */
	uint32_t shape_class;   /* index into the schema's classes */
	uint32_t rows;          /* leading dimension of row fields */
	uint32_t rows_real;     /* rows that hold a sample; the rest are masked padding */
	uint32_t rows_bad;      /* masked because their sample is quarantined */
	uint32_t width;         /* padded length of the length field */
	uint32_t max_length;    /* longest real row of this batch; packed: longest segment */
	uint32_t nids;          /* entries of the id and length lists: rows, or packed segments */
	uint64_t real_tokens;   /* of this batch, after truncation */
	uint64_t padded_tokens; /* rows * width */
	uint64_t global_tokens; /* label tokens of all ranks and micro-batches in this step */
	uint64_t extent_size;   /* bytes from the start of the slot that fields cover: one copy */
	uint64_t ids_off;       /* u64[nids] sample ids, UINT64_MAX for a masked row; in the slot */
	uint64_t lengths_off;   /* u32[nids] real lengths; in the slot */
	uint64_t step_ns;       /* ns from planning to publishing, for the eye only */
	uint32_t cursor_size;
	uint32_t reserved0;
	uint64_t ready_ns; /* CLOCK_MONOTONIC when it was published; 0: an older daemon */
	uint64_t
		row_first_off; /* u32[rows + 1] first segment of each row; 0: rows are not packed */
	uint64_t from_off;     /* u32[nids] where each segment begins in its sample; 0: likewise */
	uint32_t reserved[8];
	uint8_t cursor[STK_SHM_CURSOR_MAX]; /* from which the plan continues after this batch */
};
enum {
	STK_SHM_DESC_LAST_MICRO = 1,
	STK_SHM_DESC_ENDS_EPOCH =
		2, /* last micro-batch of the last step; an older daemon never says so */
};
static_assert(offsetof(struct stk_shm_desc, real_tokens) == 64, "ABI: bump STK_SHM_MAJOR");
static_assert(offsetof(struct stk_shm_desc, cursor_size) == 120, "ABI: bump STK_SHM_MAJOR");
static_assert(offsetof(struct stk_shm_desc, cursor) == 184, "ABI: bump STK_SHM_MAJOR");
static_assert(sizeof(struct stk_shm_desc) == 1208, "ABI: bump STK_SHM_MAJOR");

/* The seat file: this page-sized header, then ring_entries release entries of 8 bytes. */
struct stk_shm_seat {
	/* stokerd fills this line before it hands the file out. */
	alignas(128) uint32_t magic; /* STK_SHM_MAGIC_SEAT */
	uint16_t major, minor;
	uint32_t ring_entries;
	uint32_t seat;     /* number of this seat in its feed */
	uint64_t ring_off; /* release ring */
	uint64_t file_size;
	uint32_t first; /* index in the publish ring of the first entry for this seat */
	uint32_t reserved0[21];
	/* The consumer's line: only the seat stores here, nothing in it is trusted. */
	alignas(128) _Atomic uint32_t release_tail; /* entries put into the release ring */
	_Atomic uint32_t consumed;         /* publish entries taken (index after the last) */
	_Atomic uint64_t batches;          /* batches taken by next() */
	_Atomic uint64_t wait_ns;          /* time spent in next() with an empty ring */
	_Atomic uint64_t waits;            /* times the ring was found empty */
	_Atomic uint64_t waiting_since_ns; /* CLOCK_MONOTONIC; 0 when not in next() */
	_Atomic uint64_t last_next_ns;     /* CLOCK_MONOTONIC of the last batch taken */
	uint32_t reserved1[20];
	/* Also the seat's alone; away from its counters, since the daemon looks here at each publish. */
	alignas(128) _Atomic uint32_t wait; /* STK_SHM_WAIT_* */
	_Atomic uint32_t hungry;            /* 1: one of several seats, and its ring is empty */
	uint32_t reserved2[30];
};
static_assert(offsetof(struct stk_shm_seat, release_tail) == 128, "ABI: bump STK_SHM_MAJOR");
static_assert(offsetof(struct stk_shm_seat, wait) == 256, "ABI: bump STK_SHM_MAJOR");
static_assert(sizeof(struct stk_shm_seat) == 384, "ABI: bump STK_SHM_MAJOR");
static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2,
	      "atomics shared by processes must be lock-free");

/* Sizes that follow from a feed's geometry; the daemon builds from it, the client checks with it. */
struct stk_shm_geometry {
	uint32_t nslots, nfields, nclasses;
	uint64_t slot_size;   /* multiple of the page size */
	uint64_t schema_size; /* of the JSON text */
	uint64_t state_size;
	uint32_t start_size; /* at most STK_SHM_CURSOR_MAX */
};

/* Smallest power of two that is at least 2 * nslots + 2. */
uint32_t stk_shm_ring_entries(uint32_t nslots);

/**
 * stk_shm_control_plan() - fill the geometry part of a control header
 * @geometry: nslots 1..STK_SHM_MAX_SLOTS, nfields 1..STK_SHM_MAX_FIELDS
 * @ret:      magic, version, all offsets and sizes; the rest is zero
 *
 * Return: 0 or -EOVERFLOW, -EINVAL.
 */
int stk_shm_control_plan(const struct stk_shm_geometry *geometry, struct stk_shm_control *ret);

/* Size in bytes of a seat file for that many ring entries; fills *ret except `seat` and `first`. */
uint64_t stk_shm_seat_plan(uint32_t ring_entries, struct stk_shm_seat *ret);

/**
 * stk_shm_control_check() - believe a control file, or not
 * @map:        start of the read-only mapping
 * @size:       its length, from fstat
 * @slots_size: length of the slots file, from fstat
 * @ret_copy:   private copy of the header; use it, not the mapping
 *
 * Return: 0; -EAGAIN not ready; -EPROTO with both numbers in @err.
 */
int stk_shm_control_check(const void *map, uint64_t size, uint64_t slots_size,
			  struct stk_shm_control *ret_copy, struct stk_err *err);

/* The same for a seat file, against the control header it belongs to. */
int stk_shm_seat_check(const void *map, uint64_t size, const struct stk_shm_control *control,
		       struct stk_err *err);

/* Checks every offset and count of a descriptor (a private copy) against the geometry. */
int stk_shm_desc_check(const struct stk_shm_desc *desc, const struct stk_shm_field *fields,
		       const struct stk_shm_control *control, struct stk_err *err);

#endif
