/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What operators see: the replies of Status, Streams, Jobs and Queues. Each returns a new
 * reference (NULL: no memory). Runs on the loop; feeds are asked under their locks.
 */
#ifndef STKD_REPORT_H
#define STKD_REPORT_H

#include <jansson.h>

#include "daemon/serve/server.h"

json_t *stkd_report_status(struct stkd_server *server);
json_t *stkd_report_streams(struct stkd_server *server);
json_t *stkd_report_jobs(struct stkd_server *server);
json_t *stkd_report_queues(struct stkd_server *server);

#endif
