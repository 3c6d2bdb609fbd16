/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cuda/nvtx.h"

#ifdef STK_HAVE_NVTX

#include <pthread.h>

#include <nvtx3/nvToolsExt.h>

static nvtxDomainHandle_t domain;

static void make_domain(void)
{
	domain = nvtxDomainCreateA("stoker");
}

void stk__nvtx_push(const char *name)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	nvtxEventAttributes_t range = {
		.version = NVTX_VERSION,
		.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
		.messageType = NVTX_MESSAGE_TYPE_ASCII,
		.message.ascii = name,
	};

	pthread_once(&once, make_domain);
	nvtxDomainRangePushEx(domain, &range);
}

void stk__nvtx_pop(void)
{
	nvtxDomainRangePop(domain);
}

#else

void stk__nvtx_push(const char *name)
{
	(void)name;
}

void stk__nvtx_pop(void)
{
}

#endif
