/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A seek: a seat's wish to go on after another state. Finding the place may mean to plan a whole
 * epoch, so a work thread does that, without any lock; everything else runs on the loop.
 */
#ifndef STKD_SEEK_H
#define STKD_SEEK_H

#include "daemon/serve/conn.h"

/* io.stoker.Seek: answered once all seats of the feed agree, or refused. */
void stkd_seek_call(struct stkd_conn *conn, const json_t *parameters);

/* The feed of this seat has failed: what it still asks for will not come. */
void stkd_seek_failed(struct stkd_conn *conn);

#endif
