/* SPDX-License-Identifier: Apache-2.0 */
/* The tables that casts.c, rows.c and planes.c are compiled to, one for each instruction set. Private
 * to assemble/. */
#ifndef STKD_CASTS_ISA_H
#define STKD_CASTS_ISA_H

#include "daemon/assemble/casts.h"
#include "daemon/assemble/planes.h"
#include "daemon/assemble/rows.h"

#define STKD_CASTS_(isa)  stkd_casts_##isa
#define STKD_CASTS(isa)   STKD_CASTS_(isa)
#define STKD_ROWS_(isa)   stkd_rows_##isa
#define STKD_ROWS(isa)    STKD_ROWS_(isa)
#define STKD_PLANES_(isa) stkd_planes_##isa
#define STKD_PLANES(isa)  STKD_PLANES_(isa)
#define STKD_NAME_(isa)   #isa
#define STKD_NAME(isa)    STKD_NAME_(isa)

extern const struct stkd_casts stkd_casts_portable;
extern const struct stkd_rows stkd_rows_portable;
extern const struct stkd_planes stkd_planes_portable;
#ifdef __x86_64__
extern const struct stkd_casts stkd_casts_avx2, stkd_casts_avx512;
extern const struct stkd_rows stkd_rows_avx2, stkd_rows_avx512;
extern const struct stkd_planes stkd_planes_avx2, stkd_planes_avx512;
#endif
#ifdef __aarch64__
extern const struct stkd_casts stkd_casts_neon;
extern const struct stkd_rows stkd_rows_neon;
extern const struct stkd_planes stkd_planes_neon;
#endif

#endif
