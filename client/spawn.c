/* SPDX-License-Identifier: Apache-2.0 */
#include "client/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* In the child of a process with threads only async-signal-safe calls are allowed. */
static void say(int fd, const char *text)
{
	ssize_t n = write(fd, text, strlen(text));

	(void)n; /* nobody listens any more: nothing to be done */
}

static void reset_signals(void)
{
	struct sigaction action = {.sa_handler = SIG_DFL};
	sigset_t none;

	for (int i = 1; i < NSIG; i++)
		sigaction(i, &action, NULL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Moves log and ready out of the way of 0..3 first, as either may be one of them. */
static void arrange_fds(int log, int ready)
{
	int null;

	log = fcntl(log, F_DUPFD_CLOEXEC, 4);
	ready = fcntl(ready, F_DUPFD_CLOEXEC, 4);
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	null = fcntl(null, F_DUPFD_CLOEXEC, 4);
	dup2(null, 0);
	dup2(null, 1);
	dup2(log, 2);
	dup2(ready, STK__SPAWN_READY_FD);
	/* Not there before Linux 5.9; then only descriptors without close-on-exec go along. */
	close_range(STK__SPAWN_READY_FD + 1, UINT_MAX, 0);
}

static _Noreturn void run(const char *const *argv, int log, int ready)
{
	const char *reason;

	setsid();
	reset_signals();
	arrange_fds(log, ready);
	if (chdir("/") == 0)
		execv(argv[0], (char *const *)argv);
	reason = strerrordesc_np(errno);
	say(STK__SPAWN_READY_FD, "error: cannot run ");
	say(STK__SPAWN_READY_FD, argv[0]);
	say(STK__SPAWN_READY_FD, ": ");
	say(STK__SPAWN_READY_FD, reason ? reason : "unknown error");
	say(STK__SPAWN_READY_FD, "\n");
	_exit(127);
}

/* Twice, so that init is the parent and the caller never sees a zombie. */
static int fork_twice(const char *const *argv, int log, int ready, struct stk_err *err)
{
	/* Without the handlers of fork(): what the host registered must not run for this. */
	pid_t pid = _Fork();

	if (pid < 0)
		return stk_err_set(err, -errno, "cannot start %s: fork: %m", argv[0]);
	if (pid == 0) {
		pid = _Fork();
		if (pid == 0)
			run(argv, log, ready);
		if (pid < 0)
			say(ready,
			    "error: fork failed: process limit (RLIMIT_NPROC, pids.max) reached\n");
		_exit(0);
	}
	/* ECHILD: the host ignores SIGCHLD or waits for everybody; the child is gone either way. */
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
	return 0;
}

int stk__spawn(const char *const *argv, const char *log, int *ret_ready, struct stk_err *err)
{
	_cleanup_(stk_closep) int log_fd = -1;
	_cleanup_(stk_closep) int ready = -1;
	sigset_t all, saved;
	int ends[2];
	int r;

	log_fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (log_fd < 0)
		return stk_err_set(err, -errno, "%s: %m", log);
	if (pipe2(ends, O_CLOEXEC) < 0)
		return stk_err_set(err, -errno, "pipe: %m");
	ready = ends[1];
	/* No handler of the host may run in a child that still has its memory. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &saved);
	r = fork_twice(argv, log_fd, ready, err);
	pthread_sigmask(SIG_SETMASK, &saved, NULL);
	if (r < 0)
		stk_close(ends[0]);
	else
		*ret_ready = ends[0];
	return r;
}
