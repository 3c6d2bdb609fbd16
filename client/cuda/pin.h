/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page-locking of a session's slots: once for each session, in pieces of at most 1 GiB that end
 * where slots end. It belongs to the session, which ends it before it unmaps the slots, on whatever
 * thread gives back the last batch.
 */
#ifndef STK_CUDA_PIN_H
#define STK_CUDA_PIN_H

#include "client/cuda/device.h"
#include "client/session.h"

/**
 * stk__cuda_pin() - page-lock the slots of a session unless they are
 *
 * With the device current. Nothing stays registered after an error.
 *
 * Return: 0; negative errno, and the text says why.
 */
int stk__cuda_pin(struct stk__cuda_device *device, struct stk__session *session,
		  struct stk_err *err);

#endif
