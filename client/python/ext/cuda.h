/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libstoker-cuda as it is found at run time: beside the extension, where it was built, or installed.
 * Immutable once loaded, and it stays; any thread.
 */
#ifndef STK_PYTHON_CUDA_H
#define STK_PYTHON_CUDA_H

#include "client/cuda/stoker_cuda.h"

#define CUDA_FUNCTIONS(F)                                                                          \
	F(device)                                                                                  \
	F(open)                                                                                    \
	F(close)                                                                                   \
	F(next)                                                                                    \
	F(take)                                                                                    \
	F(wait)                                                                                    \
	F(release_after)                                                                           \
	F(batch_info)                                                                              \
	F(batch_slot)                                                                              \
	F(batch_ntensors)                                                                          \
	F(batch_tensor_at)                                                                         \
	F(batch_state)                                                                             \
	F(state)                                                                                   \
	F(seek)                                                                                    \
	F(next_host)                                                                               \
	F(take_host)                                                                               \
	F(release_host)                                                                            \
	F(poll)                                                                                    \
	F(info)                                                                                    \
	F(last_error)

struct cuda_calls {
#define CUDA_MEMBER(name) __typeof__(&stk_cuda_##name) name;
	CUDA_FUNCTIONS(CUDA_MEMBER)
#undef CUDA_MEMBER
};

/* NULL until cuda_load() returned 0. Whoever has a pipeline or a batch of one may use it. */
extern const struct cuda_calls *cuda_calls;

/* 0; -ENODEV: the library is not there, or of another release, and the text says which. */
int cuda_load(char *error, size_t size);

#endif
