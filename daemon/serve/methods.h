/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The methods of io.stoker and org.varlink.service: one table, one function each. Parameters are
 * untrusted; replies go out through the connection.
 */
#ifndef STKD_METHODS_H
#define STKD_METHODS_H

#include "daemon/serve/conn.h"

/* Answers one message; ends the connection when it is not a Varlink call. */
void stkd_methods_call(struct stkd_conn *conn, const json_t *message);

#endif
