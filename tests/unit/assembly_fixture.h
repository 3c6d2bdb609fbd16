/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of batches share: an assembly of fields of a made-up data set. One thread. */
#ifndef ASSEMBLY_FIXTURE_H
#define ASSEMBLY_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "daemon/assemble/assembly.h"
#include "tests/unit/fake_dataset.h"

static inline struct stkd_assembly *
compile(struct fake_dataset *fake, struct stk_spec_field *fields, size_t n, uint32_t max_length)
{
	struct stk_spec spec = {.multiple_of = 8, .fields = fields, .nfields = n};
	struct stkd_assembly *assembly = NULL;
	struct stk_err err;

	if (stkd_assembly_new(&spec, &fake->dataset, max_length, &assembly, &err) < 0)
		fail_msg("%s", err.text);
	return assembly;
}

#endif
