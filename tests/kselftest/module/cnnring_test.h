/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* cnnring_test.h: calls of the module that plays an accelerator's driver in tests. */
#ifndef CNNRING_TEST_MODULE_H
#define CNNRING_TEST_MODULE_H

#include <linux/ioctl.h>
#include <linux/types.h>

struct cnnring_test_pin {
	__u64 address;
	__u32 pages;
	__u32 write;
};

struct cnnring_test_poke {
	__u64 offset;
	__u8 write;
	__u8 value;	/* in */
	__u8 old;	/* out */
	__u8 pad[5];
};

#define CNNRING_TEST_PIN	_IOW('~', 1, struct cnnring_test_pin)
#define CNNRING_TEST_POKE	_IOWR('~', 2, struct cnnring_test_poke)
#define CNNRING_TEST_IMPORT	_IO('~', 3)
#define CNNRING_TEST_WARN	_IO('~', 4)

#endif
