// SPDX-License-Identifier: MIT
/* warn.c: makes the module of the tests warn, to see that the test bed sees it. */
#include <fcntl.h>
#include <sys/ioctl.h>

#include "../kselftest/module/cnnring_test.h"

int main(void)
{
	return ioctl(open("/dev/cnnring_test", O_RDWR), CNNRING_TEST_WARN) != 0;
}
