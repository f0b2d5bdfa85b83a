# All measurements that need a GPU, one after another: make -kf apps/gpu_runs.mk, or with the names of some steps.
# docs/gpu.md shows how to run them. A step that has succeeded is not run again (remove OUT/STEP.done for that), and one that
# has failed comes after those that were never tried. OUT/log.txt gets what all steps print, OUT/STEP.json a step's figures.
SHELL := /bin/bash
PYTHON ?= .venv/bin/python
OUT ?= build/gpu
.DEFAULT_GOAL := all

# The commands need not be on the path.
coe = $(PYTHON) -c 'import sys; from coe.cli.start import $(1); sys.argv[0] = "coe-$(1)"; $(1)()'

# $(call step,NAME,COMMAND,STEP THAT IT NEEDS,SECONDS): on experts that are not prepared a line would run, and its figures
# would be those of another precision. A step that only the end of this make cut counts as never tried. It ends with the
# group of its timeout, which itself would leave a process behind that it has just started.
define step
STEPS += $(1)
$(1): $(OUT)/$(1).done
$(OUT)/$(1).done: $(3:%=$(OUT)/%.done) | $(OUT)/is-there
	@echo "$(1)"; echo '== $(1)' >> $(OUT)/log.txt
	@trap 'kill -- -$$$$! || kill $$$$!; exit 143' TERM INT HUP; timeout --kill-after=10 $(or $(4),300) $(2) >> $(OUT)/log.txt 2>&1 & \
	    wait $$$$!; status=$$$$?; touch $(OUT)/$(1).tried; \
	    echo "== status $$$$status (124: out of time)" | tee -a $(OUT)/log.txt; [ $$$$status -eq 0 ]
	@touch $$@
endef
measured = $(call step,$(1),$(2) --json $(OUT)/$(1).json,$(3))

# The budgets of the box of docs/results.md; the machine may have more.
BOX := --executors cuda=2 --memory 8GB --device-memory 12GB --host-memory 16GB --disk-bandwidth 530MB/s
# For all lines but one of a board: cuDNN's search for kernels is estimated to take minutes at each start.
UNSEARCHED := --no-search-kernels
# A minute; the cold start, 30 s, is left out of the latencies.
EVERY_4_MS := --rate 250 --requests 15000 --settling 7500
# As many images as the paper's task A1. Where each switch reads 170 MB, they take a minute or more.
A_TASK := --rate 250 --requests 2500
SWITCH := $(call coe,bench) switch --device cuda
RUN := $(call coe,bench) run
DEMO := --board demo --store store --images build/demo/images
DEEPPCB := --board deeppcb_golden --store store --images build/deeppcb/test/images.csv

# The steps on a board of random weights: one strategy and one precision each. The eager baseline constructs an expert for
# each switch: 60 images took over 80 s on an H200. Without fp16: in mixed precision a line chooses q8 wherever that agrees,
# and preparing takes a third less. With 60 GB all experts are in memory: of an option that comes twice, the last counts.
define of_board
$(call step,$(1)-synth,$(call coe,experts) synth --board $(1) --store build/paper --files 1)
$(call step,$(1)-prepare,$(call coe,experts) prepare --board $(1) --store build/paper --variants fp32$(comma)q8,$(1)-synth,540)
$(call line,$(1),line-mixed,$(UNSEARCHED) --strategy late-binding --precision mixed $(EVERY_4_MS))
$(call line,$(1),line-mixed-memory,$(UNSEARCHED) --device-memory 60GB --strategy late-binding --precision mixed --requests 10000)
$(call line,$(1),line-mixed-backlog,$(UNSEARCHED) --strategy late-binding --precision mixed --requests 10000)
$(call line,$(1),samba-eager,$(UNSEARCHED) --strategy samba-eager --precision fp32 --requests 100)
$(call line,$(1),line-mixed-searched,--strategy late-binding --precision mixed $(EVERY_4_MS))
$(call line,$(1),coserve-mixed,$(UNSEARCHED) --strategy coserve --precision mixed $(EVERY_4_MS))
$(call line,$(1),coserve-mixed-backlog,$(UNSEARCHED) --strategy coserve --precision mixed --requests 10000)
$(call line,$(1),line-fp32,$(UNSEARCHED) --strategy late-binding --precision fp32 $(A_TASK))
$(call line,$(1),coserve-fp32,$(UNSEARCHED) --strategy coserve --precision fp32 $(A_TASK))
$(call line,$(1),samba-fp32,$(UNSEARCHED) --strategy samba --precision fp32 --requests 1000)
endef
comma := ,
line = $(call measured,$(1)-$(2),$(RUN) --board $(1) --store build/paper $(BOX) $(3),$(1)-prepare)

$(eval $(call step,tests,$(PYTHON) -m pytest -q -W default -m gpu tests/gpu))
$(eval $(call measured,switch,$(SWITCH) --kind resnet101$(comma)yolov5m$(comma)yolov5l --variant fp32$(comma)fp16$(comma)q8))
$(eval $(call of_board,A))
$(eval $(call measured,cycles,$(SWITCH) --kind resnet101 --variant q8 --cycles 10000 --experts 40))
$(eval $(call measured,switch-640,$(SWITCH) --kind yolov5m$(comma)yolov5l --variant fp32$(comma)q8 --input 640))
$(eval $(call of_board,B))
$(eval $(call step,A-profile,$(call coe,profile) --board A --store build/paper --memory 8GB --device-memory 12GB --host-memory 16GB --out build/gpu-profile.json,A-prepare))
$(eval $(call step,demo-build,$(PYTHON) -m apps.demo.build --images build/demo/images --store store))
$(eval $(call step,demo-prepare,$(call coe,experts) prepare $(DEMO) --variants fp32$(comma)q8,demo-build))
$(eval $(call measured,demo-verdicts,$(RUN) $(DEMO) --executors cuda=2 --strategy late-binding --precision fp32$(comma)mixed --requests 10000,demo-prepare))
$(eval $(call step,deeppcb-images,$(PYTHON) -m apps.deeppcb.images))
$(eval $(call step,deeppcb-prepare,$(call coe,experts) prepare $(DEEPPCB) --variants fp32$(comma)q8,deeppcb-images))
$(eval $(call measured,deeppcb-verdicts,$(RUN) $(DEEPPCB) --executors cuda=2 --memory 1GB --strategy late-binding --precision fp32$(comma)mixed --requests 1000,deeppcb-prepare))

TRIED := $(patsubst $(OUT)/%.tried,%,$(wildcard $(OUT)/*.tried))
.PHONY: all $(STEPS) $(OUT)/is-there
.NOTPARALLEL:
all: $(filter-out $(TRIED),$(STEPS)) $(filter $(TRIED),$(STEPS))

# Without a GPU all its tests would be skipped, and so succeed.
$(OUT)/is-there:
	@mkdir -p $(OUT)
	@$(PYTHON) -c 'import sys; from coe.runtime.cuda import torch_driver; sys.exit(not torch_driver.is_there())' || \
	    { echo "there is no GPU that torch can use here (torch.cuda.is_available() says so); run it on a box with one"; exit 2; }
