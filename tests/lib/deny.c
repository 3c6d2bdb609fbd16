/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deny: runs a program as a poor one: as another user, with a small memlock limit, and with mbind,
 * move_pages and io_uring_setup refused with EPERM, as containers do. A test's tool; one thread.
 */
#include <errno.h>
#include <getopt.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#error "name the AUDIT_ARCH of this processor"
#endif

#define REFUSE(nr)                                                                                 \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),                                             \
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)

/* Calls of another architecture pass: they have other numbers. */
static int refuse_calls(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		REFUSE(SYS_mbind),
		REFUSE(SYS_move_pages),
		REFUSE(SYS_io_uring_setup),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {
		.len = sizeof(filter) / sizeof(filter[0]),
		.filter = filter,
	};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return -errno;
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0 ? -errno : 0;
}

static int limit_memlock(rlim_t bytes)
{
	struct rlimit limit = {.rlim_cur = bytes, .rlim_max = bytes};

	return setrlimit(RLIMIT_MEMLOCK, &limit) < 0 ? -errno : 0;
}

static int become(uid_t uid)
{
	if (setgroups(0, NULL) < 0 || setgid(uid) < 0 || setuid(uid) < 0)
		return -errno;
	return 0;
}

static unsigned long number(const char *option, const char *text)
{
	char *end;
	unsigned long value;

	errno = 0;
	value = strtoul(text, &end, 10);
	if (errno || end == text || *end) {
		fprintf(stderr, "deny: --%s wants a number, not \"%s\"\n", option, text);
		exit(2);
	}
	return value;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"memlock", required_argument, NULL, 'm'},
		{"uid", required_argument, NULL, 'u'},
		{"calls", no_argument, NULL, 'c'},
		{0},
	};
	int option, which = 0, r = 0;

	/* In the order given; each says what it could not do. */
	while (!r && (option = getopt_long(argc, argv, "+", options, &which)) != -1) {
		if (option == 'm')
			r = limit_memlock(number("memlock", optarg));
		else if (option == 'u')
			r = become((uid_t)number("uid", optarg));
		else if (option == 'c')
			r = refuse_calls();
		else
			return 2;
	}
	if (r < 0) {
		fprintf(stderr, "deny: --%s: %s\n", options[which].name, strerror(-r));
		return 1;
	}
	if (optind >= argc) {
		fprintf(stderr,
			"usage: deny [--memlock BYTES] [--uid N] [--calls] PROGRAM [ARGUMENTS]\n");
		return 2;
	}
	execvp(argv[optind], argv + optind);
	fprintf(stderr, "deny: %s: %s\n", argv[optind], strerror(errno));
	return 127;
}
