/* SPDX-License-Identifier: Apache-2.0 */
/* The program on the stand-in: see on_standin.h. */
#define GPU_STANDIN
#include "facts.cu"
