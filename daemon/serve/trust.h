/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whom the configuration admits, by user and group. Names become numbers when the configuration is
 * read: asking for them may wait for a directory server, and the loop does not. Belongs to the loop.
 */
#ifndef STKD_TRUST_H
#define STKD_TRUST_H

#include <sys/socket.h>
#include <sys/types.h>

#include "daemon/conf.h"

struct stkd_trust {
	bool listed; /* false: whoever may open the socket */
	uid_t *uids;
	gid_t *gids;
	size_t nuids, ngids;
};

/* A name that nobody has is warned of, and admits nobody. -ENOMEM. */
int stkd_trust_init(struct stkd_trust *trust, const struct stkd_conf *conf, struct stk_err *err);
void stkd_trust_deinit(struct stkd_trust *trust);

/* @fd: the peer's socket, for all of its groups. */
bool stkd_trust_admits(const struct stkd_trust *trust, int fd, const struct ucred *peer);

#endif
