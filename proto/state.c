/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/state.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

static const char magic[8] = {'S', 'T', 'K', 'S', 'T', 'A', 'T', 'E'};

void stk_state_header_init(struct stk_state_header *header)
{
	memset(header, 0, sizeof(*header));
	memcpy(header->magic, magic, sizeof(magic));
	header->version = STK_STATE_VERSION;
}

int stk_state_parse(const void *bytes, size_t size, struct stk_state_header *ret_header,
		    const uint8_t **ret_cursor, struct stk_err *err)
{
	struct stk_state_header h;

	if (size < sizeof(h))
		return stk_err_set(err, -EINVAL, "state: %zu bytes, at least %zu needed", size,
				   sizeof(h));
	memcpy(&h, bytes, sizeof(h));
	if (memcmp(h.magic, magic, sizeof(magic)))
		return stk_err_set(err, -EINVAL, "state: not a stoker state (wrong first 8 bytes)");
	if (h.version != STK_STATE_VERSION)
		return stk_err_set(err, -EINVAL,
				   "state: version %" PRIu32 ", this release reads %d", h.version,
				   STK_STATE_VERSION);
	if (h.cursor_size != size - sizeof(h))
		return stk_err_set(err, -EINVAL,
				   "state: cursor of %" PRIu32
				   " bytes by its header, %zu bytes follow",
				   h.cursor_size, size - sizeof(h));
	*ret_header = h;
	*ret_cursor = (const uint8_t *)bytes + sizeof(h);
	return 0;
}

void stk_hex_encode(const void *bytes, size_t size, char *text)
{
	static const char digits[] = "0123456789abcdef";
	const uint8_t *b = bytes;

	for (size_t i = 0; i < size; i++) {
		*text++ = digits[b[i] >> 4];
		*text++ = digits[b[i] & 15];
	}
	*text = '\0';
}

static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

int stk_hex_decode(const char *text, void *bytes, size_t size)
{
	size_t n = strlen(text);
	uint8_t *b = bytes;

	if (n % 2 || n / 2 > size)
		return -EINVAL;
	for (size_t i = 0; i < n / 2; i++) {
		int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);

		if (high < 0 || low < 0)
			return -EINVAL;
		b[i] = (uint8_t)(high << 4 | low);
	}
	return (int)(n / 2);
}
