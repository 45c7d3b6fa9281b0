// SPDX-License-Identifier: MIT
/* main.c: picks the command of cnnctl. */
#include "cnnctl.h"

#include <stdio.h>
#include <string.h>

static const char text[] =
	"cnnctl: loads images, trains, and looks at cnnd\n"
	"  cnnctl load   [-d CONNINFO] -t TABLE [options] FILE...   images into a table\n"
	"  cnnctl train  [-d CONNINFO] -t TABLE -m MODEL [name=value ...]\n"
	"  cnnctl plot   [-d CONNINFO] -m MODEL -o FILE.png         loss and accuracy curves\n"
	"  cnnctl status [-S SOCKET] [--json]                       jobs and devices of a daemon\n"
	"  cnnctl drain | undrain [-S SOCKET]                       no new jobs; again new jobs\n"
	"  cnnctl -V\n"
	"cnnctl COMMAND -h tells the options of a command; cnnctl(1) all of it.\n";

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(int argc, char **argv);
	} command[] = {{"load", cmd_load},     {"train", cmd_train}, {"plot", cmd_plot},
		       {"status", cmd_status}, {"drain", cmd_drain}, {"undrain", cmd_drain}};

	if (argc < 2)
		return usage(text, "a command is wanted");
	if (!strcmp(argv[1], "-V") || !strcmp(argv[1], "--version")) {
		puts("cnnctl " CNN_VERSION);
		return 0;
	}
	if (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help"))
		return usage(text, NULL);
	for (size_t i = 0; i < sizeof(command) / sizeof(*command); i++)
		if (!strcmp(argv[1], command[i].name))
			return command[i].run(argc - 1, argv + 1);
	return usage(text, "there is no command '%s'", argv[1]);
}
