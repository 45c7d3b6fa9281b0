# SPDX-License-Identifier: GPL-2.0
# Probes: does this compile against the kernel at hand? (compat.h)
#   $(call cnnring_probe,HEADER,STATEMENT,MACRO)
cnnring_probe = $(shell printf '%s\n' '$(pound)include <linux/module.h>' '$(pound)include <$(1)>' \
	'void cnnring_probe(void);' 'void cnnring_probe(void)' '{' '$(2);' '}' | \
	$(CC) $(LINUXINCLUDE) $(KBUILD_CPPFLAGS) $(KBUILD_CFLAGS) $(KBUILD_CFLAGS_MODULE) -DMODULE \
	-DKBUILD_MODNAME='"cnnring"' -DKBUILD_BASENAME='"probe"' -Werror=implicit-function-declaration \
	-Wno-unused -fsyntax-only -x c - >/dev/null 2>&1 && echo -DCNNRING_HAVE_$(3))
# once a build, not once a file
ifndef cnnring_probed
cnnring_probed := done \
	$(call cnnring_probe,linux/mm.h,vm_flags_set((struct vm_area_struct *)0$(comma) 0),VM_FLAGS_SET) \
	$(call cnnring_probe,linux/iosys-map.h,iosys_map_clear((struct iosys_map *)0),IOSYS_MAP) \
	$(call cnnring_probe,linux/dma-buf-map.h,dma_buf_map_clear((struct dma_buf_map *)0),DMA_BUF_MAP) \
	$(call cnnring_probe,linux/module.h,} MODULE_IMPORT_NS(DMA_BUF); void cnnring_rest(void); void cnnring_rest(void) {,NS_TOKEN)
endif
ccflags-y += $(filter -D%,$(cnnring_probed))
