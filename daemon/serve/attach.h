/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Attach call: from untrusted parameters to a checked request. Versions, trust, ranges and the
 * spec are settled here; the job takes over from there.
 */
#ifndef STKD_ATTACH_H
#define STKD_ATTACH_H

#include "daemon/serve/conn.h"

void stkd_attach_call(struct stkd_conn *conn, const json_t *parameters);

#endif
