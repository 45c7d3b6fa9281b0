# SPDX-License-Identifier: MIT
# udf/: the extension, built with PGXS by udf/Makefile.
.PHONY: udf
