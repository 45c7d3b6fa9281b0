# SPDX-License-Identifier: MIT
# tests/demo/: `make demo`, also a test of the whole path as a user sees it.
DATA ?= fashion
.PHONY: demo
demo: ## train on Fashion-MNIST (DATA=cifar10: CIFAR-10) in a private server: accuracy, confusion matrix, plot
	tests/setup/packages.sh build demo
	$(MAKE) -s BUILD=$(BUILD) udf-stage $(BUILD)/bin/cnnd $(BUILD)/bin/cnnctl
	BUILD=$(BUILD) tests/demo/demo.sh $(DATA)
