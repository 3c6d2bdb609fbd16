/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/trust.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>

#include "daemon/log.h"

static bool is_number(const char *text, uint32_t *ret)
{
	char *end;
	unsigned long n;

	if (text[0] < '0' || text[0] > '9')
		return false;
	errno = 0;
	n = strtoul(text, &end, 10);
	*ret = (uint32_t)n;
	return !*end && !errno && n < UINT32_MAX;
}

static bool find_user(const char *name, uint32_t *ret)
{
	const struct passwd *pw = is_number(name, ret) ? NULL : getpwnam(name);

	if (pw)
		*ret = pw->pw_uid;
	return pw || is_number(name, ret);
}

static bool find_group(const char *name, uint32_t *ret)
{
	const struct group *gr = is_number(name, ret) ? NULL : getgrnam(name);

	if (gr)
		*ret = gr->gr_gid;
	return gr || is_number(name, ret);
}

/* The numbers of all names that have one; uid_t and gid_t are both 32 bits wide. */
static int find_all(char *const *names, const char *key, bool (*find)(const char *, uint32_t *),
		    uint32_t **ret, size_t *ret_n)
{
	size_t n = 0;

	while (names && names[n])
		n++;
	*ret_n = 0;
	*ret = calloc(n + 1, sizeof(**ret));
	if (!*ret)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		if (find(names[i], &(*ret)[*ret_n]))
			(*ret_n)++;
		else
			log_warn("%s: nobody is called \"%s\"; it admits nobody until a reload",
				 key, names[i]);
	}
	return 0;
}

int stkd_trust_init(struct stkd_trust *trust, const struct stkd_conf *conf, struct stk_err *err)
{
	struct stkd_trust t = {.listed = conf->users || conf->groups};
	int r = find_all(conf->users, "users", find_user, &t.uids, &t.nuids);

	if (r == 0)
		r = find_all(conf->groups, "groups", find_group, &t.gids, &t.ngids);
	if (r < 0) {
		stkd_trust_deinit(&t);
		return stk_err_set(err, r, "out of memory");
	}
	*trust = t;
	return 0;
}

void stkd_trust_deinit(struct stkd_trust *trust)
{
	free(trust->uids);
	free(trust->gids);
	*trust = (struct stkd_trust){0};
}

static bool is_among(const uint32_t *list, size_t n, uint32_t id)
{
	for (size_t i = 0; i < n; i++)
		if (list[i] == id)
			return true;
	return false;
}

/* Groups beside the first; somebody may be in thousands. */
static bool has_group(const struct stkd_trust *trust, int fd)
{
	_cleanup_(stk_freep) gid_t *gids = NULL;
	socklen_t size = 0;

	/* Too little room: the kernel says how much. */
	if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &size) == 0 || errno != ERANGE)
		return false;
	gids = malloc(size);
	if (!gids || getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, gids, &size) < 0)
		return false;
	for (size_t i = 0; i < size / sizeof(gid_t); i++)
		if (is_among(trust->gids, trust->ngids, gids[i]))
			return true;
	return false;
}

bool stkd_trust_admits(const struct stkd_trust *trust, int fd, const struct ucred *peer)
{
	if (!trust->listed || is_among(trust->uids, trust->nuids, peer->uid))
		return true;
	return trust->ngids &&
	       (is_among(trust->gids, trust->ngids, peer->gid) || has_group(trust, fd));
}
