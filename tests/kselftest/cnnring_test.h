/* SPDX-License-Identifier: MIT */
/*
 * cnnring_test.h: for tests in the kernel's own harness: a ring with both ends, made before a test
 * and gone without a trace after it.
 */
#ifndef CNNRING_TEST_H
#define CNNRING_TEST_H

#include "cnnring_call.h"

#include "kselftest_harness.h"

/* seconds for one test: an emulated machine with a sanitizer is slow */
#undef TEST_TIMEOUT_DEFAULT
#define TEST_TIMEOUT_DEFAULT 300

FIXTURE(ring)
{
	int consumer, producer;
};

FIXTURE_SETUP(ring)
{
	ASSERT_TRUE(all_free());
	self->consumer = device();
	ASSERT_GE(self->consumer, 0);
	ASSERT_EQ(create(self->consumer, BYTES), 0);
	self->producer = peer_fd(self->consumer);
	ASSERT_GE(self->producer, 0);
}

FIXTURE_TEARDOWN(ring)
{
	if (self->consumer >= 0)
		close(self->consumer);
	if (self->producer >= 0)
		close(self->producer);
	EXPECT_TRUE(all_free());
}

#endif
