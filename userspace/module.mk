# SPDX-License-Identifier: MIT
# userspace/: one static library per folder, and the programs cnnd and cnnctl.
USERSPACE_LIBS := base ring ctl model data train
$(foreach l,$(USERSPACE_LIBS),$(eval $(BUILD)/lib$(l).a: $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard userspace/$(l)/*.c))))
all: $(USERSPACE_LIBS:%=$(BUILD)/lib%.a)

# What each library needs, itself first, in link order; and the system's libraries.
B := $(BUILD)
LIBS_base := $B/libbase.a
LIBS_ring := $B/libring.a
LIBS_ctl := $B/libctl.a $B/libbase.a
LIBS_model := $B/libmodel.a $(LIBS_kernels) $B/libbase.a
LIBS_data := $B/libdata.a $B/libctl.a $(LIBS_kernels) $B/libbase.a
LIBS_train := $B/libtrain.a $B/libmodel.a $B/libdata.a $B/libctl.a $(LIBS_kernels) $(LIBS_merge) $B/libbase.a
SYS_model := -ljansson $(SYS_kernels)
SYS_data := -ljpeg -lpng -lxxhash $(SYS_kernels)
SYS_train := -ljansson -ljpeg -lpng -lxxhash $(SYS_kernels) $(SYS_merge)

CNND_SRC := $(wildcard userspace/cnnd/*.c)
CNNCTL_SRC := $(wildcard userspace/cnnctl/*.c)
PQ_CFLAGS := -I$(shell $(PG_CONFIG) --includedir 2>/dev/null)
CFLAGS_userspace_cnnctl := $(PQ_CFLAGS)

$(BUILD)/bin/cnnd: $(CNND_SRC:%.c=$(BUILD)/obj/%.o) $(LIBS_train) $(LIBS_ring)
	@mkdir -p $(@D)
	$(CC) $(CNN_LDFLAGS) -o $@ $^ -Wl,--as-needed $(SYS_train)

$(BUILD)/bin/cnnctl: $(CNNCTL_SRC:%.c=$(BUILD)/obj/%.o) $(LIBS_ctl)
	@mkdir -p $(@D)
	$(CC) $(CNN_LDFLAGS) -o $@ $^ -Wl,--as-needed -lpq -larchive -ljansson -lm

all: $(if $(CNND_SRC),$(BUILD)/bin/cnnd) $(if $(CNNCTL_SRC),$(BUILD)/bin/cnnctl)

# ---- install: PREFIX, SYSCONFDIR and DESTDIR are honoured; the extension goes where PG_CONFIG says ----
PREFIX ?= /usr
SYSCONFDIR ?= /etc
MANDIR := $(DESTDIR)$(PREFIX)/share/man
.PHONY: install install-userspace
install-userspace: $(BUILD)/bin/cnnd $(BUILD)/bin/cnnctl
	install -D -m 755 $(BUILD)/bin/cnnd $(DESTDIR)$(PREFIX)/sbin/cnnd
	install -D -m 755 $(BUILD)/bin/cnnctl $(DESTDIR)$(PREFIX)/bin/cnnctl
	install -D -m 644 docs/man/cnnd.8 $(MANDIR)/man8/cnnd.8
	install -D -m 644 docs/man/cnnd.conf.5 $(MANDIR)/man5/cnnd.conf.5
	install -D -m 644 docs/man/cnnctl.1 $(MANDIR)/man1/cnnctl.1
	install -D -m 644 docs/man/gpu_cnn.7 $(MANDIR)/man7/gpu_cnn.7
	install -D -m 644 userspace/cnnd/cnnd.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/cnnd.conf
	install -D -m 644 userspace/cnnd/cnnd.tmpfiles $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/cnnd.conf
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	sed 's,/usr/sbin/cnnd,$(PREFIX)/sbin/cnnd,' userspace/cnnd/cnnd.service >$(DESTDIR)$(PREFIX)/lib/systemd/system/cnnd.service
	[ -e $(DESTDIR)$(SYSCONFDIR)/cnnd.conf ] || install -D -m 644 userspace/cnnd/cnnd.conf $(DESTDIR)$(SYSCONFDIR)/cnnd.conf
install: install-userspace install-udf ## daemon, tool, manuals, extension; PREFIX, DESTDIR, PG_CONFIG honoured
