/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranges of the domain "stoker" for Nsight Systems: wait, copy, release. Without NVTX's headers at
 * build time nothing; without a profiler a load and a branch. Any thread.
 */
#ifndef STK_CUDA_NVTX_H
#define STK_CUDA_NVTX_H

void stk__nvtx_push(const char *name);
void stk__nvtx_pop(void);

#endif
