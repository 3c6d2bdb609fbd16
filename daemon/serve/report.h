/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What operators see: the replies of Status, Streams, Jobs, Queues and Quarantine. Each returns a new
 * reference (NULL: no memory). Runs on the loop; feeds are asked under their locks.
 */
#ifndef STKD_REPORT_H
#define STKD_REPORT_H

#include <jansson.h>

#include "daemon/serve/server.h"

struct stkd_job;

json_t *stkd_report_status(struct stkd_server *server);
json_t *stkd_report_streams(struct stkd_server *server);
json_t *stkd_report_jobs(struct stkd_server *server);
json_t *stkd_report_queues(struct stkd_server *server);
/* @stream, @job: of these alone; NULL: of all. */
json_t *stkd_report_quarantine(struct stkd_server *server, const char *stream, const char *job);

/* Says in the log which samples a job that ends has masked. */
void stkd_report_masked(const struct stkd_job *job);

#endif
