/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The SIGBUS handler and one jump buffer per thread. Owns the process's SIGBUS action; guarded
 * calls run on any thread, several at once.
 */
#include "daemon/shard/guard.h"

#include <assert.h>
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>

/* The thread sanitizer runs our handler inside its own, which blocks all signals: SA_NODEFER is
 * lost. */
#ifdef __SANITIZE_THREAD__
#define SAVE_MASK 1
#else
#define SAVE_MASK 0
#endif

struct guard {
	sigjmp_buf jump;
	const void *address;
	volatile sig_atomic_t armed; /* jump is valid: this thread is inside a guarded call */
};

/* initial-exec: the handler may not run the dynamic linker's lazy allocation. */
static _Thread_local struct guard guard __attribute__((tls_model("initial-exec")));

static void on_sigbus(int sig, siginfo_t *info, void *context)
{
	(void)context;
	/* si_code <= 0: somebody sent it with kill(); no load of ours failed. */
	if (guard.armed && info->si_code > 0) {
		guard.armed = 0;
		guard.address = info->si_addr;
		siglongjmp(guard.jump, 1);
	}
	/* Foreign. A fault repeats when we return and dies where it happened, for the core. */
	signal(sig, SIG_DFL);
	if (info->si_code <= 0)
		raise(sig);
}

int stkd_guard_install(void)
{
	/* SA_NODEFER: the jump skips the return that would unblock the signal. */
	struct sigaction action = {
		.sa_sigaction = on_sigbus,
		.sa_flags = SA_SIGINFO | SA_NODEFER,
	};

	sigemptyset(&action.sa_mask);
	return sigaction(SIGBUS, &action, NULL) < 0 ? -errno : 0;
}

int stkd_guard_run(int (*fn)(void *arg), void *arg, const void **ret_address)
{
	int r;

	assert(!guard.armed);
	/* Without the signal mask: saving costs a system call, and SA_NODEFER leaves it alone. */
	if (sigsetjmp(guard.jump, SAVE_MASK)) {
		if (ret_address)
			*ret_address = guard.address;
		return -EFAULT;
	}
	guard.armed = 1;
	/* The loads of fn stay between the two stores, even where fn is inlined. */
	atomic_signal_fence(memory_order_seq_cst);
	r = fn(arg);
	atomic_signal_fence(memory_order_seq_cst);
	guard.armed = 0;
	return r;
}
