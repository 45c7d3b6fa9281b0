# SPDX-License-Identifier: MIT
# tests/cnnctl/: the command line tool against a scratch server.
.PHONY: check-cnnctl check-demo
check-cnnctl: udf-stage $(BUILD)/bin/cnnd $(BUILD)/bin/cnnctl ## the command line tool
	BUILD=$(BUILD) tests/harness tests/cnnctl/cnnctl.t

# the demo on few rows: that it runs and says what it should
check-demo: udf-stage $(BUILD)/bin/cnnd $(BUILD)/bin/cnnctl ## make demo in short
	BUILD=$(BUILD) tests/harness tests/demo/install.t tests/demo/demo.t
