/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/assemble/kernels.h"
#include "daemon/assemble/rows.h"

#define WIDTH 200

/* Source values end at the end of a page behind which nothing is mapped. */
static uint8_t *page, *page_end;

static int set_up(void **state)
{
	size_t size = (size_t)sysconf(_SC_PAGESIZE);

	(void)state;
	page = mmap(NULL, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(page != MAP_FAILED && munmap(page + size, size) == 0);
	page_end = page + size;
	for (size_t i = 0; i < size; i++)
		page[i] = (uint8_t)(i * 37 + (i >> 3));
	return 0;
}

static uint64_t value_of(const uint8_t *at, size_t size, bool is_signed)
{
	uint64_t bits = 0;

	memcpy(&bits, at, size);
	if (is_signed && size < 8 && bits >> (8 * size - 1))
		bits |= UINT64_MAX << (8 * size);
	return bits;
}

/* src is NULL for ones. */
static void check(stkd_row_fn row, const uint8_t *src, size_t in, size_t out, bool is_signed,
		  size_t n, size_t width)
{
	static _Alignas(64) uint8_t dst[8 * (WIDTH + 8)];
	uint64_t pad = UINT64_C(0xfedcba9876543210);

	memset(dst, 0xAA, sizeof(dst));
	row(dst, src, n, width, pad);
	for (size_t i = 0; i < width; i++) {
		uint64_t expected = i >= n ? pad : src ? value_of(src + i * in, in, is_signed) : 1;

		assert_memory_equal(dst + i * out, &expected, out);
	}
	for (size_t i = width * out; i < sizeof(dst); i++)
		assert_int_equal(dst[i], 0xAA);
}

/* Each of the two is what the row alone would be. */
static void check_twins(stkd_twins_fn twins, stkd_row_fn row, const uint8_t *src, size_t out,
			size_t n, size_t width)
{
	static _Alignas(64) uint8_t a[8 * (WIDTH + 8)], b[8 * (WIDTH + 8)], want[8 * (WIDTH + 8)];
	const uint64_t pads[] = {UINT64_C(0xfedcba9876543210), UINT64_C(0x0123456789abcdef)};
	size_t offset = n % 8 * out;

	memset(a, 0xAA, sizeof(a));
	memset(b, 0xAA, sizeof(b));
	twins(a + offset, b, src, n, width, pads[0], pads[1]);
	memset(want, 0xAA, sizeof(want));
	row(want + offset, src, n, width, pads[0]);
	assert_memory_equal(a, want, sizeof(want));
	memset(want, 0xAA, sizeof(want));
	row(want, src, n, width, pads[1]);
	assert_memory_equal(b, want, sizeof(want));
}

static void twins_are_two_rows_from_values_that_are_read_once(void **state)
{
	const struct stkd_rows *list[3];
	size_t nlist = stkd_rows_list(list);

	(void)state;
	srand(4);
	for (size_t l = 0; l < nlist; l++) {
		for (unsigned from = 0; from < STKD_NSIZES; from++) {
			for (unsigned to = from; to < STKD_NSIZES; to++) {
				for (size_t n = 0; n < 140; n++) {
					size_t out = (size_t)1 << to;
					size_t width = n + (size_t)rand() % (WIDTH - n);
					const uint8_t *src = page_end - (n << from);

					check_twins(list[l]->unsigned_twins[from][to],
						    list[l]->unsigned_[from][to], src, out, n,
						    width);
					check_twins(list[l]->signed_twins[from][to],
						    list[l]->signed_[from][to], src, out, n, width);
				}
			}
		}
	}
	assert_true(stkd_twins_find(STK_DTYPE_I8, STK_DTYPE_I64) == list[0]->signed_twins[0][3]);
	assert_true(stkd_twins_find(STK_DTYPE_U8, STK_DTYPE_I64) == list[0]->unsigned_twins[0][3]);
	assert_null(stkd_twins_find(STK_DTYPE_I8, STK_DTYPE_U16));
}

static void every_row_is_its_values_and_padding_and_reads_nothing_behind_them(void **state)
{
	const struct stkd_rows *list[3];
	size_t nlist = stkd_rows_list(list);

	(void)state;
	srand(3);
	for (size_t l = 0; l < nlist; l++) {
		for (unsigned from = 0; from < STKD_NSIZES; from++) {
			for (unsigned to = from; to < STKD_NSIZES; to++) {
				for (size_t n = 0; n < 140; n++) {
					size_t in = (size_t)1 << from, out = (size_t)1 << to;
					size_t width = n + (size_t)rand() % (WIDTH - n);
					const uint8_t *src = page_end - n * in;

					check(list[l]->unsigned_[from][to], src, in, out, false, n,
					      width);
					check(list[l]->signed_[from][to], src, in, out, true, n,
					      width);
					check(list[l]->ones[to], NULL, 0, out, false, n, width);
				}
			}
		}
	}
}

/* Token ids as some vocabularies have them, at odd addresses, in every way a value is widened. */
static void ids_above_32767_stay_positive(void **state)
{
	static const uint16_t ids[] = {0, 32767, 32768, 50256, 65535};
	static _Alignas(64) uint8_t src[2 * 33 + 1];
	int32_t i32[33];
	int64_t i64[33];

	(void)state;
	for (size_t n = 1; n <= 33; n++) {
		for (size_t odd = 0; odd < 2; odd++) {
			for (size_t i = 0; i < n; i++)
				memcpy(src + odd + 2 * i, &ids[(i + n) % 5], 2);
			for (int way = 0; way < 2; way++) {
				memset(i32, 0xAA, sizeof(i32));
				memset(i64, 0xAA, sizeof(i64));
				if (way) {
					stkd_row_find(STK_DTYPE_U16, STK_DTYPE_I32)(i32, src + odd,
										    n, n, 0);
					stkd_row_find(STK_DTYPE_U16, STK_DTYPE_I64)(i64, src + odd,
										    n, n, 0);
				} else {
					stkd_copy_find(STK_DTYPE_U16, STK_DTYPE_I32)(i32, src + odd,
										     n);
					stkd_copy_find(STK_DTYPE_U16, STK_DTYPE_I64)(i64, src + odd,
										     n);
				}
				for (size_t i = 0; i < n; i++) {
					assert_int_equal(i32[i], ids[(i + n) % 5]);
					assert_int_equal(i64[i], ids[(i + n) % 5]);
				}
			}
		}
	}
}

static void only_casts_without_loss_have_a_row(void **state)
{
	(void)state;
	assert_non_null(stkd_row_find(STK_DTYPE_U16, STK_DTYPE_I64));
	assert_non_null(stkd_row_find(STK_DTYPE_I8, STK_DTYPE_I16));
	assert_non_null(stkd_row_find(STK_DTYPE_BF16, STK_DTYPE_BF16));
	assert_non_null(stkd_row_find(STK_DTYPE_C64, STK_DTYPE_C64));
	assert_null(stkd_row_find(STK_DTYPE_I8, STK_DTYPE_U16));
	assert_null(stkd_row_find(STK_DTYPE_U16, STK_DTYPE_I16));
	assert_null(stkd_row_find(STK_DTYPE_I32, STK_DTYPE_I16));
	assert_null(stkd_row_find(STK_DTYPE_BOOL, STK_DTYPE_I32));
	assert_null(stkd_row_find(STK_DTYPE_F32, STK_DTYPE_F64));
	assert_null(stkd_row_find(STK_DTYPE_F4, STK_DTYPE_F4));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_row_is_its_values_and_padding_and_reads_nothing_behind_them),
		cmocka_unit_test(twins_are_two_rows_from_values_that_are_read_once),
		cmocka_unit_test(ids_above_32767_stay_positive),
		cmocka_unit_test(only_casts_without_loss_have_a_row),
	};

	return cmocka_run_group_tests(tests, set_up, NULL);
}
