# Shoal. make | make demo | make demo-serve | make test [T=kind/name] [SEED=n] | make bench | make gpu | make soak | make fuzz | make asan |
# make tsan | make fmt | make lint | make install | make deb | make reference
# FLAVOUR=release (default), debug, asan or tsan; CC=gcc (default) or clang-14. Output: build/$(FLAVOUR)/.

FLAVOUR ?= release
CC      := $(if $(filter default,$(origin CC)),gcc,$(CC))
OUT     := build/$(FLAVOUR)$(if $(filter-out gcc,$(CC)),-$(notdir $(CC)))

WARN := -std=c11 -D_GNU_SOURCE -Werror -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes \
        -Wmissing-prototypes -Wformat=2 -Wcast-qual -Wundef -Wvla
OPT_release := -O2 -g
OPT_debug   := -O0 -g
OPT_asan    := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
OPT_tsan    := -O1 -g -fsanitize=thread -fno-omit-frame-pointer
CFLAGS  := $(WARN) $(OPT_$(FLAVOUR)) -fPIC -ffp-contract=off -fvisibility=hidden -fstack-protector-strong -I. -Iinclude
LDFLAGS := $(OPT_$(FLAVOUR)) -Wl,--as-needed -Wl,-z,relro,-z,now

# One library, one file suffix: node/x_lmdb.c is all that knows LMDB. The agent links no UCX, the worker library no libuv.
LIBS      := -luv -lsodium -llmdb -lhttp_parser -lnghttp2 -lssl -lcrypto -ljansson -larchive -lz -lncursesw -ldl -lpthread -lm
WORKLIBS  := -lcrypto -ldl -lpthread -lm

AGENT_SRC  := $(filter-out node/runner_main.c node/runner/warm_python.c,$(wildcard gossip/*.c sched/*/*.c api/*/*.c node/*.c node/*/*.c sim/*.c))
WORKER_SRC := $(wildcard collective/*/*.c)
AGENT_OBJ  := $(AGENT_SRC:%.c=$(OUT)/%.o)
CORE_OBJ   := $(filter-out $(OUT)/node/main.o,$(AGENT_OBJ))
WORKER_OBJ := $(WORKER_SRC:%.c=$(OUT)/%.o)
UNIT_SRC   := $(wildcard tests/unit/*_test.c)
UNIT_BIN   := $(UNIT_SRC:%.c=$(OUT)/%)
SHIM       := $(OUT)/tests/system/disk_shim.so
TOOL_SRC   := $(filter-out tests/system/disk_shim.c,$(wildcard tests/system/*.c tests/bench/*.c))
TOOL_BIN   := $(TOOL_SRC:%.c=$(OUT)/%) $(SHIM) $(OUT)/tests/fake/libgpu_fake.so $(OUT)/tests/fake/libgpu_fake_old.so

PYTHON := .venv/bin/python
JOBS   := $(shell nproc)

# What the spawn helper runs: small and static, since each runner and worker is forked from it. No sanitizer links so.
RUNNING    := $(patsubst %,$(OUT)/node/runner/%.o,runner runner_child runner_log runner_peer runner_server runner_start runner_wire \
              spawn_helper spawn_wire warm_key) $(OUT)/sched/job/pack_msgpack.o
RUNNER_OBJ := $(OUT)/node/runner_main.o $(RUNNING)
STATIC     := $(if $(filter release debug,$(FLAVOUR)),-static)

SONAME := libshoal.so.0

all: $(OUT)/shoal $(OUT)/dlim $(OUT)/shoal-runner $(OUT)/libshoal.so $(OUT)/$(SONAME) $(OUT)/libshoal-warm.so $(OUT)/fabric/build.version

$(OUT)/shoal-runner: $(RUNNER_OBJ)
	@$(CC) $(LDFLAGS) $(STATIC) $^ -lpthread -o $@

# The same for a warm interpreter, which has Python's own functions already.
$(OUT)/libshoal-warm.so: $(OUT)/node/runner/warm_python.o $(RUNNING)
	@$(CC) $(LDFLAGS) -shared $^ -lpthread -o $@

$(OUT)/shoal: $(AGENT_OBJ)
	@$(CC) $(LDFLAGS) $^ $(LIBS) -o $@

# The same program by the name that WMLA's scripts call (api/cli/dlim.c).
$(OUT)/dlim: | $(OUT)/shoal
	@ln -sf shoal $@

# The simulator and the cores, nothing else: so another compiler can build them quickly, and give the same traces (tests/sim).
$(OUT)/sim_alone: $(filter $(OUT)/gossip/% $(OUT)/sched/% $(OUT)/sim/% $(OUT)/node/store/disk_order.o,$(AGENT_OBJ))
	@$(CC) $(LDFLAGS) $^ -Wl,--defsym=main=shoal_sim_main -o $@

$(OUT)/libshoal.so: $(WORKER_OBJ)
	@$(CC) $(LDFLAGS) -shared -Wl,-soname,$(SONAME) $^ $(WORKLIBS) -o $@

# What a program that is linked to it is loaded with.
$(OUT)/$(SONAME): $(OUT)/libshoal.so
	@ln -sf libshoal.so $@

$(OUT)/%.o: %.c
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS) -MMD -MP -c $< -o $@

# Tests and tools take from the archive what they use of all but main(). Thin: it names the objects.
$(OUT)/core.a: $(CORE_OBJ) $(WORKER_OBJ)
	@rm -f $@ && ar rcsT $@ $^

$(OUT)/tests/%: $(OUT)/tests/%.o $(OUT)/core.a
	@$(CC) $(LDFLAGS) $^ -lcmocka $(LIBS) $(WORKLIBS) -o $@

# What the agent's files call there is the test's own.
JOB_EVENTS := agent_bundle_let_go agent_folders_remove agent_host_event agent_materialise agent_serve_ended agent_serve_forget \
              agent_tree_deleted shoal_cache_put workers_close workers_create workers_kill workers_slot_left
$(OUT)/tests/unit/job_events_test: LDFLAGS += $(JOB_EVENTS:%=-Wl,--wrap=%)
$(OUT)/tests/unit/manifest_test: LDFLAGS += -Wl,--wrap=agent_host_event -Wl,--wrap=agent_find_result_dir -Wl,--wrap=agent_store_below
$(OUT)/tests/unit/archive_making_test: LDFLAGS += -Wl,--wrap=agent_event -Wl,--wrap=agent_read_blob

# Tests put it between an agent and its disk.
$(OUT)/tests/system/disk_shim.so: $(OUT)/tests/system/disk_shim.o
	@$(CC) $(LDFLAGS) -shared $^ -o $@

# Stands for CUDA's driver and NCCL where there is no GPU; the old one lacks what NCCL has learnt since 2.27.
$(OUT)/tests/fake/libgpu_fake%.so: tests/fake/gpu_fake.c $(OUT)/collective/memory/half.o
	@mkdir -p $(@D)
	@$(CC) $(filter-out -W% -fvisibility%,$(CFLAGS)) $(LDFLAGS) -shared $(if $*,-DOLD_NCCL) $^ -lpthread -o $@
$(OUT)/tests/fake/libgpu_fake.so: tests/fake/gpu_fake.c $(OUT)/collective/memory/half.o
	@mkdir -p $(@D)
	@$(CC) $(filter-out -W% -fvisibility%,$(CFLAGS)) $(LDFLAGS) -shared $^ -lpthread -o $@

# FABRIC_HOME: what a training script imports.
$(OUT)/fabric/build.version: $(OUT)/libshoal.so $(OUT)/libshoal-warm.so $(shell find collective/python -name '*.py') | $(PYTHON)
	@$(PYTHON) collective/python/build_fabric.py $(OUT)/fabric $(OUT)/libshoal.so $(OUT)/libshoal-warm.so

setup .venv/bin/python:
	@.ci/setup
# Without what only tests need.
setup-demo:
	@.ci/setup --demo
units: $(UNIT_BIN)
tools: $(TOOL_BIN)

# Every decoder of foreign bytes under libFuzzer: FUZZ_SECONDS each, T=NAME for one. What it finds stays in build/fuzz/.
# `make test` runs a few thousand inputs of each with one seed, where there is a clang.
FUZZ_SECONDS ?= 10
FUZZ_NAMES := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*$(if $(filter-out unit% system% python% sim% fuzz%,$(T)),$(T),).c))
FUZZ_READY := $(if $(shell command -v clang-14),$(FUZZ_NAMES:%=build/fuzz/fuzz_%))
FUZZ_FLAGS := -gline-tables-only -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
FUZZ_OBJ   := $(CORE_OBJ:$(OUT)/%=build/fuzz/%) $(patsubst %,build/fuzz/collective/transport/%.o,transport_tcp tcp_door tcp_message seal_openssl)

SIM_CLANG  := FLAVOUR=debug CC=clang-14 build/debug-clang-14/sim_alone

# Every test. T=unit, T=unit/raft, T=fuzz, T=system, T=system/submit ... narrows it; SEED=n repeats a seed.
# LANES=n: so many system tests at a time instead of three, or of up to five while cores are idle.
test: setup
	@$(MAKE) -j$(JOBS) --no-print-directory FLAVOUR=release all units tools $(if $(filter-out fuzz%,$(T)),,$(FUZZ_READY))
	@$(if $(filter-out sim%,$(T)),,$(if $(shell command -v clang-14),$(MAKE) -j$(JOBS) --no-print-directory $(SIM_CLANG)))
	@$(PYTHON) tests/run.py --out build/release $(if $(T),--only $(T)) $(if $(SEED),--seed $(SEED)) $(if $(LANES),--lanes $(LANES))

demo: setup-demo
	@$(MAKE) -q --no-print-directory FLAVOUR=release all || echo "builds Shoal, for a minute or two"
	@$(MAKE) -j$(JOBS) --no-print-directory FLAVOUR=release all
	@$(PYTHON) docs/demo/demo.py --binary build/release/shoal $(if $(KEEP),--keep)

# A model is trained, served, and asked through all hosts while one of them dies.
demo-serve: setup-demo
	@$(MAKE) -q --no-print-directory FLAVOUR=release all || echo "builds Shoal, for a minute or two"
	@$(MAKE) -j$(JOBS) --no-print-directory FLAVOUR=release all
	@$(PYTHON) docs/demo/serve.py --binary build/release/shoal $(if $(KEEP),--keep)

# What needs a card: checks and figures, one line each (tests/gpu). GPU="card samples" narrows it, GPU_PYTHON names the Python that has torch.
GPU_PYTHON ?= $(PYTHON)
gpu: setup
	@$(MAKE) --no-print-directory FLAVOUR=release all tools
	@$(GPU_PYTHON) tests/gpu/run.py $(GPU)

bench: setup
	@$(MAKE) --no-print-directory FLAVOUR=release all tools
	@$(PYTHON) tests/bench/run.py --out build/release

# The unit tests, C workers and three agents once more, under the address and undefined-behaviour sanitizers.
asan: setup
	@$(MAKE) --no-print-directory FLAVOUR=release all
	@$(MAKE) --no-print-directory FLAVOUR=asan all units tools
	@$(PYTHON) tests/run.py --out build/asan --only unit
	@$(PYTHON) tests/run.py --out build/asan --only system/test_comm
	@$(PYTHON) tests/run.py --out build/release --only system/asan

# What has threads of its own (libshoal's, the store's writer, the blobs'), under the thread sanitizer.
TSAN_UNITS := collective transport blob store runner
tsan: setup
	@$(MAKE) --no-print-directory FLAVOUR=tsan $(TSAN_UNITS:%=build/tsan/tests/unit/%_test)
	@for name in $(TSAN_UNITS); do $(PYTHON) tests/run.py --out build/tsan --only unit/$$name || exit 1; done

# Faults planted in a copy of the tree, one at a time: tests must find each of them (tests/mutants).
mutants: setup
	@$(PYTHON) tests/mutants/run.py --units

soak: setup asan tsan
	@$(if $(FUZZ_READY),$(MAKE) --no-print-directory fuzz,echo "SKIP fuzz: no clang-14; .ci/setup --develop installs it")
	@$(MAKE) --no-print-directory FLAVOUR=release all units tools
	@$(PYTHON) tests/run.py --out build/release --soak $(if $(SEED),--seed $(SEED))

build/fuzz/%.o: %.c
	@mkdir -p $(@D)
	@clang-14 $(WARN) $(FUZZ_FLAGS) -I. -Iinclude -MMD -MP -c $< -o $@

build/fuzz/core.a: $(FUZZ_OBJ)
	@rm -f $@ && ar rcs $@ $^

# One target stands in for the network: what it defines comes first.
build/fuzz/fuzz_cli_answers: FUZZ_LINK := -Wl,--allow-multiple-definition
build/fuzz/fuzz_%: build/fuzz/tests/fuzz/fuzz_%.o build/fuzz/core.a
	@clang-14 $(FUZZ_FLAGS) -fsanitize=fuzzer -Wl,--as-needed $(FUZZ_LINK) $^ $(LIBS) -o $@

fuzz: $(FUZZ_NAMES:%=build/fuzz/fuzz_%)
	@tests/fuzz/run.sh $(FUZZ_SECONDS) $(FUZZ_NAMES)

fmt:
	clang-format-14 -i $$(git ls-files '*.c' '*.h')

lint:
	@.ci/lint $(JOBS) $(AGENT_SRC) $(WORKER_SRC)

include packaging/install.mk

clean:
	rm -rf build

.SECONDARY:
.PHONY: all mutants units tools setup setup-demo test demo demo-serve bench gpu soak asan tsan fuzz fmt lint install deb deb-tools reference clean
-include $(FUZZ_OBJ:.o=.d) $(FUZZ_NAMES:%=build/fuzz/tests/fuzz/fuzz_%.d) $(AGENT_OBJ:.o=.d) $(WORKER_OBJ:.o=.d) $(UNIT_BIN:%=%.d) $(TOOL_BIN:%=%.d)
