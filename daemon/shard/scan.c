/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks the outer objects of a JSON text; jansson parses each name and value. Stateless but for the
 * caller's struct, which belongs to one thread.
 */
#include "daemon/shard/scan.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define DEPTH_MAX 128        /* nesting, as the reference reader of safetensors */
#define VALUE_MAX (1u << 20) /* bytes of a value that is an object or a list */

const char *stkd_label(const char *name, char out[STKD_LABEL_SIZE])
{
	const unsigned char *in = (const unsigned char *)name;
	size_t used = 0;

	if (!*in)
		return strcpy(out, "\"\"");
	for (; *in; in++) {
		/* C1 controls are C2 80 .. C2 9F in UTF-8. */
		bool control =
			*in < 0x20 || *in == 0x7f || (*in == 0xc2 && in[1] >= 0x80 && in[1] < 0xa0);

		/* Cut between characters, if those that follow the cut are well-formed. */
		if (used > STKD_LABEL_SIZE - 8 ||
		    (used > STKD_LABEL_SIZE - 12 && (*in & 0xc0) != 0x80)) {
			strcpy(out + used, "...");
			return out;
		}
		if (control)
			used += (size_t)snprintf(out + used, STKD_LABEL_SIZE - used, "\\x%02x",
						 *in);
		else
			out[used++] = (char)*in;
	}
	out[used] = '\0';
	return out;
}

int stkd_scan_broken(struct stkd_scan *scan, size_t at, const char *what)
{
	char label[STKD_LABEL_SIZE];

	return stk_err_set(scan->err, -EBADMSG, "header: byte %zu: %s", at,
			   stkd_label(what, label));
}

static void skip_space(struct stkd_scan *scan)
{
	while (scan->at < scan->size && scan->text[scan->at] &&
	       strchr(" \t\r\n", scan->text[scan->at]))
		scan->at++;
}

char stkd_scan_look(struct stkd_scan *scan)
{
	skip_space(scan);
	return scan->at < scan->size ? scan->text[scan->at] : '\0';
}

/* Where the value at the place ends. jansson judges it; this only bounds size and nesting. */
static int value_end(struct stkd_scan *scan, size_t *ret_end)
{
	unsigned depth = 0;
	bool string = false;
	size_t i = scan->at;

	while (i < scan->size) {
		char c = scan->text[i];

		if (!string && !depth && strchr(",}] \t\r\n", c))
			break;
		i += string && c == '\\' ? 2 : 1;
		if (c == '"')
			string = !string;
		if (string)
			continue;
		if (c == '{' || c == '[') {
			if (++depth > DEPTH_MAX)
				return stkd_scan_broken(scan, i, "nested more than 128 deep");
		} else if (c == '}' || c == ']') {
			depth--;
		}
		if (!depth && strchr("\"}]", c))
			break;
	}
	*ret_end = STK_MIN(i, scan->size);
	return 0;
}

static int broken_json(struct stkd_scan *scan, const json_error_t *e)
{
	size_t at = scan->at + (e->position > 0 ? (size_t)e->position : 0);
	char label[STKD_LABEL_SIZE];

	if (json_error_code(e) != json_error_numeric_overflow)
		return stkd_scan_broken(scan, at, e->text);
	return stk_err_set(scan->err, -EBADMSG, "header: byte %zu: %s (the largest is %" PRId64 ")",
			   at, stkd_label(e->text, label), INT64_MAX);
}

int stkd_scan_value(struct stkd_scan *scan, json_t **ret)
{
	json_error_t e;
	size_t end = scan->at;
	char first = stkd_scan_look(scan);
	int r = value_end(scan, &end);

	if (r < 0)
		return r;
	if (end == scan->at)
		return stkd_scan_broken(scan, scan->at, "a value is missing");
	if (strchr("{[", first) && end - scan->at > VALUE_MAX)
		return stkd_scan_broken(scan, scan->at,
					"an object or list of more than 1048576 bytes");
	*ret = json_loadb(scan->text + scan->at, end - scan->at,
			  JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
	if (!*ret)
		return json_error_code(&e) == json_error_out_of_memory
			       ? stk_err_set(scan->err, -ENOMEM, "header: no memory")
			       : broken_json(scan, &e);
	scan->at = end;
	return 0;
}

static int parse_name(struct stkd_scan *scan, json_t **ret)
{
	json_t *name = NULL;
	int r;

	if (stkd_scan_look(scan) != '"')
		return stkd_scan_broken(scan, scan->at, "expected a name in quotes");
	r = stkd_scan_value(scan, &name);
	if (r < 0)
		return r;
	if (strlen(json_string_value(name)) != json_string_length(name)) {
		json_decref(name);
		return stkd_scan_broken(scan, scan->at, "a name with a NUL character in it");
	}
	*ret = name;
	return 0;
}

int stkd_scan_object(struct stkd_scan *scan, stkd_scan_member *member, void *arg)
{
	char c;

	scan->at++; /* { */
	if (stkd_scan_look(scan) == '}') {
		scan->at++;
		return 0;
	}
	do {
		json_t *name = NULL;
		int r = parse_name(scan, &name);

		if (r < 0)
			return r;
		if (stkd_scan_look(scan) == ':') {
			scan->at++;
			r = member(scan, json_string_value(name), arg);
		} else {
			r = stkd_scan_broken(scan, scan->at, "expected ':' after a name");
		}
		json_decref(name);
		if (r < 0)
			return r;
		c = stkd_scan_look(scan);
		if (c != ',' && c != '}')
			return stkd_scan_broken(scan, scan->at, "expected ',' or '}'");
		scan->at++;
	} while (c == ',');
	return 0;
}
