/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A walk over a large, hostile JSON object that never holds it all: the caller sees one member at a
 * time, memory stays near the size of one value, and errors name the byte. One thread per scan.
 */
#ifndef STKD_SCAN_H
#define STKD_SCAN_H

#include <jansson.h>

#include "proto/err.h"

struct stkd_scan {
	const char *text;
	size_t size, at; /* at: the place */
	struct stk_err *err;
};

/* Called at the value of a member; moves behind it, with one of the calls below. */
typedef int stkd_scan_member(struct stkd_scan *scan, const char *name, void *arg);

/* The character at the place, after white space; '\0' at the end. */
char stkd_scan_look(struct stkd_scan *scan);

/* Walks the object at the place, which is at a '{'. Names with NUL are refused; duplicates are the
 * caller's business. Return: 0, -EBADMSG, or what member() returned. */
int stkd_scan_object(struct stkd_scan *scan, stkd_scan_member *member, void *arg);

/* The value at the place, any type, at most 128 deep; inside it duplicate keys are refused. The
 * place moves behind it. New reference. Return: 0, -EBADMSG, -ENOMEM. */
int stkd_scan_value(struct stkd_scan *scan, json_t **ret);

/* Says "header: byte AT: WHAT". Return: -EBADMSG. */
int stkd_scan_broken(struct stkd_scan *scan, size_t at, const char *what);

/* A name from a file, fit for a message: control characters escaped, long ones cut,
 * none at all in quotes. Returns out. */
#define STKD_LABEL_SIZE 96
const char *stkd_label(const char *name, char out[STKD_LABEL_SIZE]);

#endif
