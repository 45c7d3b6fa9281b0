// SPDX-License-Identifier: MIT
/* vmexit.c: vmexit N ends the virtual machine; qemu's isa-debug-exit then exits with 2N + 1. */
#include <stdlib.h>
#include <sys/io.h>
#include <sys/reboot.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	unsigned int code = argc > 1 ? (unsigned int)atoi(argv[1]) : 0;

	sync();
	if (!ioperm(0xf4, 4, 1))
		outl(code & 0x7f, 0xf4);
	reboot(RB_POWER_OFF);
	return 1;
}
