/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cuda/pin.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PIECE_MAX (UINT64_C(1) << 30) /* a call holds locks that all processes of the node share */

struct pin {
	struct stk__pin hook; /* the session's handle */
	struct stk__cuda_device *device;
	uint32_t n;
	void *pieces[];
};

/* The unregistering of one pin. With the device current; an error at the process's end is none. */
static int unregister(void *arg)
{
	struct pin *pin = arg;
	const struct stk__cuda_runtime *rt = pin->device->rt;

	while (pin->n)
		if (rt->HostUnregister(pin->pieces[--pin->n]) != STK__CUDA_SUCCESS)
			rt->GetLastError();
	return 0;
}

static void pin_end(struct stk__pin *hook)
{
	struct pin *pin = (struct pin *)hook;

	stk__cuda_run(pin->device, unregister, pin, NULL);
	stk__cuda_device_unref(pin->device);
	free(pin);
}

/* Worth a smaller try: under load a large piece can be refused where small ones are not. */
static bool may_halve(int code)
{
	return code == STK__CUDA_INVALID_VALUE || code == STK__CUDA_NO_MEMORY;
}

/* Slots [first, nslots), in pieces of at most @most slots. */
static int register_all(struct pin *pin, const struct stk__session *s, uint32_t most,
			struct stk_err *err)
{
	const struct stk__cuda_runtime *rt = pin->device->rt;
	uint64_t size = s->geometry.slot_size;
	uint32_t first = 0;

	while (first < s->geometry.nslots) {
		uint32_t n = STK_MIN(most, s->geometry.nslots - first);
		void *base = s->slots + first * size;
		int code = rt->HostRegister(base, n * size, STK__CUDA_REGISTER_PORTABLE);

		if (code == STK__CUDA_SUCCESS) {
			pin->pieces[pin->n++] = base;
			first += n;
		} else if (n > 1 && may_halve(code)) {
			rt->GetLastError();
			most = n / 2;
		} else {
			return stk__cuda_error(rt, code, "cudaHostRegister", err,
					       "page-locking %" PRIu64
					       " bytes of slots at offset %" PRIu64,
					       n * size, first * size);
		}
	}
	return 0;
}

/*
 * A mapping that was made read-only cannot be registered on most devices: it is writable meanwhile.
 * Under the session's lock.
 */
static int register_writable(struct pin *pin, struct stk__session *s, struct stk_err *err)
{
	uint32_t most = (uint32_t)STK_MAX(
		STK_MIN(PIECE_MAX / s->geometry.slot_size, s->geometry.nslots), 1);
	bool read_only = s->geometry.replicas > 1;
	int r;

	if (read_only && mprotect(s->slots, s->slots_size, PROT_READ | PROT_WRITE) < 0)
		return stk_err_set(err, -errno, "slots: cannot be made writable: %m");
	r = register_all(pin, s, most, err);
	if (r < 0)
		unregister(pin);
	if (read_only && mprotect(s->slots, s->slots_size, PROT_READ) < 0 && r == 0) {
		r = stk_err_set(err, -errno, "slots: cannot be protected: %m");
		unregister(pin);
	}
	return r;
}

int stk__cuda_pin(struct stk__cuda_device *device, struct stk__session *s, struct stk_err *err)
{
	struct pin *pin;
	int r = 0;

	pin = calloc(1, sizeof(*pin) + s->geometry.nslots * sizeof(pin->pieces[0]));
	if (!pin)
		return stk_err_set(err, -ENOMEM, "slots: no memory");
	pin->hook.end = pin_end;
	pin->device = device;
	pthread_mutex_lock(&s->lock);
	if (!s->pin && (r = register_writable(pin, s, err)) == 0) {
		stk__cuda_device_ref(device);
		s->pin = &STK_STEAL(pin)->hook;
	}
	pthread_mutex_unlock(&s->lock);
	free(pin);
	return r;
}
