// SPDX-License-Identifier: MIT
/* conf.c: the configuration file: every kind of fault with its line, defaults, reload, and that the
 * shipped file and the manual say what the table says. */
#include <pwd.h>
#include <unistd.h>

#include "../../userspace/cnnd/conf.h"
#include "../tap.h"

static char file[64];
static char report_text[4096];
static unsigned int report_lines[16], reports;

static void collect(void *context, const char *name, unsigned int line, const char *text)
{
	size_t n = strlen(report_text);

	snprintf(report_text + n, sizeof(report_text) - n, "%s\n", text);
	if (reports < 16)
		report_lines[reports] = line;
	reports++;
}

static int parse_bytes(const char *text, size_t n, struct conf *out)
{
	FILE *f = fopen(file, "w");

	if (!f)
		BAIL("cannot write %s", file);
	fwrite(text, 1, n, f);
	fclose(f);
	report_text[0] = '\0';
	reports = 0;
	return conf_read(file, out, collect, NULL);
}

static int parse(const char *text, struct conf *out)
{
	return parse_bytes(text, strlen(text), out);
}

static const struct {
	const char *text;
	unsigned int line;
	const char *message;
} faults[] = {
	{"socket_group =\nfoo = 1\n", 2, "unknown key 'foo'"},
	{"socket_group =\n\n# c\nmemory\n", 4, "not a line of the form key = value"},
	{"socket_group =\n= 3\n", 2, "unknown key ''"},
	{"socket_group =\nmax_queue = 3\nmax_queue = 4\n", 3, "set already, in line 2"},
	{"socket_group =\nsocket = run/x.sock\n", 2, "an absolute path is wanted"},
	{"socket_group =\nsocket = /" /* 107 more */
	 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	 "aaa"
	 "aaaaaaaaaaaaaaaa\n",
	 2, "longer than 107 bytes"},
	{"socket_group = no-such-group-here\n", 1, "there is no group 'no-such-group-here'"},
	{"socket_group =\ndatabase_uids = no-such-user-here\n", 2,
	 "there is no user 'no-such-user-here'"},
	{"socket_group =\nadmin_uids = 4294967295\n", 2, "there is no user"},
	{"socket_group =\nmax_queue = 0\n", 2, "out of range 1 .. 4096"},
	{"socket_group =\nmax_queue = -1\n", 2, "a whole number is wanted"},
	{"socket_group =\nmax_queue = 5x\n", 2, "a whole number is wanted"},
	{"socket_group =\nmax_queue = 99999999999999999999999\n", 2, "a whole number is wanted"},
	{"socket_group =\nmax_queue =\n", 2, "a whole number is wanted"},
	{"socket_group =\nring_bytes = 3M\n", 2, "a power of two is wanted"},
	{"socket_group =\nring_bytes = 2G\n", 2, "out of range 64K .. 1G"},
	{"socket_group =\nring_bytes = 8Q\n", 2, "a size is wanted"},
	{"socket_group =\nmax_value = 99999999999999T\n", 2, "too large"},
	{"socket_group =\nring = pipe\n", 2, "one of auto|memfd|device is wanted"},
	{"socket_group =\nring = aut\n", 2, "one of auto|memfd|device is wanted"},
	{"socket_group =\nmemory = 0%\n", 2, "out of range 1% .. 100%"},
	{"socket_group =\nmemory = 101%\n", 2, "out of range 1% .. 100%"},
	{"socket_group =\nmemory = 1K\n", 2, "out of range 32M"},
	{"socket_group =\ndecode_sandbox = maybe\n", 2, "on or off is wanted"},
	{"socket_group =\ndevices = gpu\n", 2,
	 "one of none, auto, cpu:N, cuda:i,j, cuda:all is wanted"},
	{"socket_group =\ndevices = cuda\n", 2, "cuda:all, or cuda: and the numbers"},
	{"socket_group =\ndevices = cuda:\n", 2, "cuda:all, or cuda: and the numbers"},
	{"socket_group =\ndevices = cuda:0,0\n", 2, "each once, is wanted"},
	{"socket_group =\ndevices = cuda:0,\n", 2, "each once, is wanted"},
	{"socket_group =\ndevices = cuda:-1\n", 2, "each once, is wanted"},
	{"socket_group =\ndevices = cuda:0 1\n", 2, "each once, is wanted"},
	{"socket_group =\ndevices = cuda:99999999999999999999\n", 2, "each once, is wanted"},
	{"socket_group =\ndevices = cpu:0\n", 2, "out of range 1 .. 1024"},
	{"socket_group =\ndevices = cpu:two\n", 2, "a whole number is wanted"},
	{"socket_group =\nspill_dir = nowhere\n", 2, "an absolute path is wanted"},
	{"socket_group =\nmerge_listen = localhost\n", 2, "a numeric address is wanted"},
	{"socket_group =\nmerge_listen =\n", 2, "a numeric address is wanted"},
	{"socket_group =\nmerge_listen = 10.0.0.256\n", 2, "a numeric address is wanted"},
	{"socket_group =\nmerge_listen = 0.0.0.0\n", 2, "the other hosts are told this address"},
	{"socket_group =\nmerge_listen = ::\n", 2, "the other hosts are told this address"},
	{"socket_group =\nmerge_listen = 0:0:0:0:0:0:0:0\n", 2, "told this address"},
	{"socket_group =\nmerge_ports = 0-5\n", 2, "out of range 1 .. 65535"},
	{"socket_group =\nmerge_ports = 7-6\n", 2, "larger than the last"},
	{"socket_group =\nmerge_ports = 7-\n", 2, "a whole number is wanted"},
	{"socket_group =\nmerge_ports = 65536\n", 2, "out of range 1 .. 65535"},
	{"socket_group =\nmerge_ports = 1-2-3\n", 2, "a whole number is wanted"},
	{"socket_group =\nmerge_timeout = 0\n", 2, "out of range 1 .. 3600"},
	{"socket_group =\nrejoin_timeout = 4\n", 2, "out of range 5 .. 3600"},
	{"socket_group =\nmerge_congestion = no-such-one\n", 2, "this kernel does not give it"},
	{"socket_group =\nmerge_congestion = aaaaaaaaaaaaaaaa\n", 2, "longer than 15 bytes"},
	{"socket_group =\nmerge_transport = rdma\n", 2, "one of tcp|ucx is wanted"},
	{"socket_group =\nmerge_ucx_tls = rc, tcp\n", 2, "names with commas"},
	{"socket_group =\nmerge_ucx_tls = rc,,tcp\n", 2, "names with commas"},
	{"socket_group =\nmerge_ucx_devices = ^\n", 2, "names with commas"},
	{"socket_group =\nmerge_ucx_devices = eth0;x\n", 2, "names with commas"},
	{"socket_group =\nring_bytes = 8M\nring_total = 4M\n", 0, "larger than ring_total"},
	{"socket_group =\nmax_connections = 10\n", 0, "larger than max_connections"},
};

static void test_faults(void)
{
	struct conf c, before;
	char name[128];

	memset(&c, 0x55, sizeof(c));
	before = c;
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		int rc = parse(faults[i].text, &c);

		snprintf(name, sizeof(name), "fault %zu is refused: %.60s", i, faults[i].message);
		ok(rc < 0 && reports == 1, "%s", name);
		is(report_lines[0], faults[i].line, "  its line");
		like(report_text, faults[i].message, "  its text");
		ok(!memcmp(&c, &before, sizeof(c)), "  the result is untouched");
	}
}

static void test_shape(void)
{
	static char longline[6000];
	struct conf c;

	ok(parse("foo = 1\nsocket_group =\nbar = 2\nmax_queue = x\n", &c) < 0 && reports == 3,
	   "every fault is told, not the first alone");
	is(report_lines[2], 4, "  with its own line");
	memset(longline, 'a', sizeof(longline));
	memcpy(longline, "socket_group =\n", 15);
	longline[5990] = '\0';
	ok(parse(longline, &c) < 0, "a line of 6,000 bytes is refused");
	like(report_text, "more than 4094 bytes", "  and told");
	ok(parse_bytes("socket_group =\nmax_queue = 3\0 4\nx\n", 33, &c) < 0,
	   "a NUL byte is refused");
	ok(parse("socket_group =", &c) == 0, "a last line without a newline is a line");
	ok(parse("  socket_group=# none\r\n\tmax_queue =\t7 # seven\n", &c) == 0 &&
		   c.max_queue == 7,
	   "spaces, tabs, carriage returns and comments");
	unlink(file);
	ok(conf_read(file, &c, collect, NULL) == -2, "a file that is not there");
}

static void test_values(void)
{
	struct conf c;
	struct passwd *pw = getpwuid(0);

	if (parse("socket_group = 77\nsocket = /x/y\ndatabase_uids = 7,root 9\nadmin_uids =\n"
		  "devices = cpu:3\nmemory = 3G\nmemory_per_role = 40%\nring_bytes = 64K\n"
		  "ring = memfd\nmax_value = 5G\ndecode_sandbox = off\ndebug = yes\n"
		  "spill_dir = none\nstop_timeout = 0\n"
		  "merge_listen = 0:0:0:0:0:0:0:1\nmerge_ports = 5000-5009\nmerge_mac = off\n"
		  "merge_congestion = reno\nmerge_transport = ucx\n"
		  "merge_ucx_tls = ^rc,ud\nmerge_ucx_devices = mlx5_0:1,eth0.7\n",
		  &c))
		BAIL("%s", report_text);
	is(c.socket_gid, 77, "a group by number");
	is_str(c.socket, "/x/y", "a path");
	ok(c.database_uids.n == 3 && conf_has_uid(&c.database_uids, 7) &&
		   conf_has_uid(&c.database_uids, 9) && pw && conf_has_uid(&c.database_uids, 0),
	   "users by name and number, commas and spaces");
	ok(!conf_has_uid(&c.database_uids, 8), "  and no others");
	is(c.admin_uids.n, 0, "an empty list");
	ok(c.device.kind == CONF_DEVICES_CPU && c.device.threads == 3, "cpu:3");
	is(c.memory.value, 3ll << 30, "3G");
	ok(!c.memory.percent && c.memory_per_role.percent, "bytes and percent");
	is(conf_amount(&c.memory_per_role, 1000), 400, "40 % of 1,000");
	is(conf_amount(&c.memory_per_role, UINT64_MAX), UINT64_MAX / 100 * 40 + 15 * 40 / 100,
	   "40 % of the largest number, without an overflow");
	ok(c.ring == CONF_RING_MEMFD && c.ring_bytes == 65536 && c.max_value == 5ull << 30,
	   "ring, sizes");
	ok(!c.decode_sandbox && c.debug, "off, yes");
	is_str(c.spill_dir, "none", "no spilling");
	is(c.stop_timeout, 0, "zero where zero is legal");
	is_str(c.merge_listen, "::1", "an address in its usual form");
	ok(c.merge_ports.first == 5000 && c.merge_ports.last == 5009, "a range of ports");
	ok(!c.merge_mac && c.merge_transport == CONF_TRANSPORT_UCX, "off, ucx");
	is_str(c.merge_ucx_tls, "^rc,ud", "  its transports");
	is_str(c.merge_ucx_devices, "mlx5_0:1,eth0.7", "  and devices");
	is_str(c.merge_congestion, "reno", "a congestion control");
	if (parse("socket_group =\nmerge_ports = 7000\n", &c))
		BAIL("%s", report_text);
	ok(c.merge_ports.first == 7000 && c.merge_ports.last == 7000, "one port");
	is_str(c.merge_listen, "127.0.0.1", "no other host is reached by default");
	if (parse("socket_group =\ndevices = none\n", &c))
		BAIL("%s", report_text);
	ok(c.device.kind == CONF_DEVICES_NONE, "devices = none");
	if (parse("socket_group =\ndevices = cuda:2,0\n", &c))
		BAIL("%s", report_text);
	ok(c.device.kind == CONF_DEVICES_GPU && c.device.gpus.n == 2 && !c.device.gpus.all &&
		   c.device.gpus.index[0] == 2 && c.device.gpus.index[1] == 0,
	   "devices = cuda:2,0");
	if (parse("socket_group =\ndevices = cuda:all\n", &c))
		BAIL("%s", report_text);
	ok(c.device.kind == CONF_DEVICES_GPU && c.device.gpus.all && !c.device.gpus.n,
	   "devices = cuda:all");
	if (parse("socket_group =\n", &c))
		BAIL("%s", report_text);
	ok(c.device.kind == CONF_DEVICES_AUTO, "devices = auto by default");
	is(c.spill_min_free, 1ll << 30, "a disk is not filled by default");
	ok(c.memory.percent && c.memory.value == 25, "memory is a quarter by default");
	ok(c.max_connections == 512 && c.max_connections_per_uid == 256 && c.max_queue == 32 &&
		   c.max_jobs_per_role == 8,
	   "the documented defaults");
	is(c.socket_gid, (gid_t)-1, "no group: the daemon's own");
}

static void test_reload(void)
{
	struct conf now, fresh;

	if (parse("socket_group =\nsocket = /a/b\nmax_queue = 3\nmemory = 1G\n", &now) ||
	    parse("socket_group =\nsocket = /a/c\nmax_queue = 4\nmemory = 50%\ndevices = cpu:1\n",
		  &fresh))
		BAIL("%s", report_text);
	reports = 0;
	report_text[0] = '\0';
	conf_reload(&now, &fresh, "f", collect, NULL);
	ok(now.max_queue == 4 && now.memory.percent && now.memory.value == 50,
	   "reload keys are taken");
	is_str(now.socket, "/a/b", "restart keys stay");
	is(reports, 2, "each restart key that differs is told");
	like(report_text, "socket has changed", "  socket");
	like(report_text, "devices has changed", "  devices");
	reports = 0;
	conf_reload(&now, &now, "f", collect, NULL);
	is(reports, 0, "nothing differs: nothing is told");
}

/* Reads a whole file; NULL: cannot. */
static char *slurp(const char *path)
{
	FILE *f = fopen(path, "r");
	char *all = calloc(1, 1 << 18);

	if (f && all)
		(void)!fread(all, 1, (1 << 18) - 1, f);
	if (f)
		fclose(f);
	return f ? all : NULL;
}

/* The shipped file names every key once, commented out, with its default and its mark. */
static void test_shipped(void)
{
	char *text = slurp(CNND_SOURCE "/cnnd.conf"), *man = slurp(CNND_MAN), line[256], *at;
	struct conf_key_info k;
	unsigned int n = 0, lines = 0;

	if (!text || !man)
		BAIL("no cnnd.conf or cnnd.conf.5");
	for (; conf_key(n, &k); n++) {
		const char *mark, *restart;

		snprintf(line, sizeof(line), "\n#%s =%s%s\n", k.name, *k.value ? " " : "", k.value);
		at = strstr(text, line);
		ok(at, "cnnd.conf has %s with its default '%s'", k.name, k.value);
		/* the mark stands before the key, in the comment of its group */
		for (mark = restart = NULL, at = at ? at : text; at > text; at--) {
			if (!strncmp(at, "[reload]", 8))
				mark = at;
			if (!strncmp(at, "[restart]", 9))
				restart = at;
			if (mark || restart)
				break;
		}
		ok(k.reload ? !!mark : !!restart, "  marked %s",
		   k.reload ? "[reload]" : "[restart]");
		snprintf(line, sizeof(line), "\n.It Ic %s ", k.name);
		at = strstr(man, line);
		if (!ok(at, "cnnd.conf(5) has %s", k.name))
			continue;
		/* ".It Ic key Pq default ; mark" */
		snprintf(line, sizeof(line), "\n.It Ic %s Pq %s ; %s\n", k.name,
			 *k.value ? k.value : "empty", k.reload ? "reload" : "restart");
		ok(!strncmp(at, line, strlen(line)), "  with default and mark: %.60s", line + 1);
	}
	for (at = text; (at = strstr(at, "\n#")); at++)
		lines += at[2] >= 'a' && at[2] <= 'z';
	is(lines, n, "no key in cnnd.conf that the table does not know");
	for (lines = 0, at = man; (at = strstr(at, "\n.It Ic ")); at++)
		lines++;
	is(lines, n, "no key in cnnd.conf(5) that the table does not know");
	free(text);
	free(man);
}

int main(void)
{
	snprintf(file, sizeof(file), "/var/tmp/cnnd-conf-%d", (int)getpid());
	test_faults();
	test_shape();
	test_values();
	test_reload();
	test_shipped();
	unlink(file);
	return done();
}
