/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/stoker/stop.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>

int stop_open(struct stk_err *err)
{
	sigset_t set;
	int fd;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return stk_err_set(err, -errno, "cannot block signals: %m");
	fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (fd < 0)
		return stk_err_set(err, -errno, "cannot make a signal descriptor: %m");
	return fd;
}

bool stop_wanted(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return fd >= 0 && poll(&p, 1, 0) > 0;
}

int stop_or_readable(int stop_fd, int fd, struct stk_err *err)
{
	struct pollfd p[2] = {{.fd = fd, .events = POLLIN}, {.fd = stop_fd, .events = POLLIN}};

	/* A stop and continue of the process (SIGCONT) interrupts poll(): just wait again. */
	while (poll(p, 2, -1) < 0)
		if (errno != EINTR)
			return stk_err_set(err, -errno, "cannot wait for data: %m");
	return p[1].revents ? stk_err_set(err, -EINTR, "interrupted") : 0;
}
