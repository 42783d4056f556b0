# make install and make deb.
#
# PREFIX is where it will run, DESTDIR a folder to put it into instead of /: make install PREFIX=/usr DESTDIR=/tmp/package
# LIBDIR is where libraries go, for systems that have a folder for each architecture.
PREFIX  ?= /usr/local
DESTDIR ?=
LIBDIR  ?= $(PREFIX)/lib

# What a kernel in C includes, kernel.h; a worker in C: worker.h, collective.h, collective_op.h, device.h, and what these include.
PUBLIC_HEADERS := buf collective collective_op device error ids kernel limits permute ranks step_record wire worker
COMPLETION     := $(OUT)/completion
INSTALLED       = $(DESTDIR)$(PREFIX)
# What README.md and the pages among themselves lead to, and the two examples that they submit.
PAGES          := $(wildcard docs/*.md docs/openapi.json docs/*/*.md docs/demo/digits/* docs/demo/c_worker/*)
VERSION        := $(shell sed -n 's/^.define SHOAL_VERSION "\(.*\)"/\1/p' node/agent/agent.h)

$(COMPLETION)/%: packaging/completion.py $(OUT)/shoal
	@mkdir -p $(@D)
	@$(PYTHON) packaging/completion.py $(OUT)/shoal $* > $@.new && mv $@.new $@

install: all $(COMPLETION)/bash $(COMPLETION)/zsh $(COMPLETION)/fish
	install -D -m 755 $(OUT)/shoal "$(INSTALLED)/bin/shoal"
	ln -sf shoal "$(INSTALLED)/bin/dlim"
	install -D -m 755 $(OUT)/shoal-runner "$(INSTALLED)/lib/shoal/shoal-runner"
	rm -rf "$(INSTALLED)/lib/shoal/fabric"
	cp -R $(OUT)/fabric "$(INSTALLED)/lib/shoal/fabric"
	find "$(INSTALLED)/lib/shoal/fabric" -name __pycache__ -prune -exec rm -rf {} +
	install -D -m 644 $(OUT)/libshoal.so "$(DESTDIR)$(LIBDIR)/$(SONAME)"
	ln -sf $(SONAME) "$(DESTDIR)$(LIBDIR)/libshoal.so"
	install -d "$(INSTALLED)/include/shoal"
	install -m 644 $(PUBLIC_HEADERS:%=include/shoal/%.h) "$(INSTALLED)/include/shoal"
	install -d "$(DESTDIR)$(LIBDIR)/pkgconfig"
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|' packaging/shoal.pc.in > "$(DESTDIR)$(LIBDIR)/pkgconfig/shoal.pc"
	install -d "$(INSTALLED)/lib/systemd/system"
	sed 's|@PREFIX@|$(PREFIX)|' packaging/shoal-agent.service.in > "$(INSTALLED)/lib/systemd/system/shoal-agent.service"
	install -D -m 644 packaging/shoal.sysusers "$(INSTALLED)/lib/sysusers.d/shoal.conf"
	install -D -m 644 packaging/shoal.tmpfiles "$(INSTALLED)/lib/tmpfiles.d/shoal.conf"
	install -D -m 644 $(COMPLETION)/bash "$(INSTALLED)/share/bash-completion/completions/shoal"
	install -D -m 644 $(COMPLETION)/zsh "$(INSTALLED)/share/zsh/vendor-completions/_shoal"
	install -D -m 644 $(COMPLETION)/fish "$(INSTALLED)/share/fish/vendor_completions.d/shoal.fish"
	install -D -m 644 docs/man/shoal.1 "$(INSTALLED)/share/man/man1/shoal.1"
	ln -sf shoal.1 "$(INSTALLED)/share/man/man1/dlim.1"
	install -D -m 644 docs/man/shoal-agent.8 "$(INSTALLED)/share/man/man8/shoal-agent.8"
	install -D -m 644 LICENSE "$(INSTALLED)/share/doc/shoal/LICENSE"
	install -D -m 644 packaging/agent.conf.example "$(INSTALLED)/share/doc/shoal/examples/agent.conf"
	install -D -m 644 README.md "$(INSTALLED)/share/doc/shoal/README.md"
	for page in $(PAGES); do install -D -m 644 "$$page" "$(INSTALLED)/share/doc/shoal/$$page" || exit 1; done
	@$(if $(DESTDIR),,packaging/found_by_the_loader "$(LIBDIR)" $(SONAME))

# The pages of docs/reference that say what the program says.
reference: $(OUT)/shoal
	@$(PYTHON) docs/reference/make.py $(OUT)/shoal

deb-tools:
	@for tool in dpkg-buildpackage dh git; do command -v $$tool > /dev/null || { echo "make deb needs $$tool, which is not installed:" \
	    "apt-get install debhelper dpkg-dev git (or .ci/setup --develop)" >&2; exit 1; }; done

# Debian packages in build/deb: the tree is copied with its times, so that what is built already is not built anew; from a
# fresh copy `dpkg-buildpackage` builds it all. lintian, where it is installed, finds nothing in them.
deb: deb-tools all
	rm -rf build/deb && mkdir -p build/deb/shoal
	git ls-files -z -co --exclude-standard | xargs -0 cp -pP --parents -t build/deb/shoal
	mv build/deb/shoal/packaging/debian build/deb/shoal/debian
	cd build/deb/shoal && SHOAL_BUILT=$(abspath $(OUT)) SHOAL_PYTHON=$(abspath $(PYTHON)) \
	    dpkg-buildpackage -us -uc -b -d > ../build.log 2>&1 || { tail -30 ../build.log; exit 1; }
	@if command -v lintian > /dev/null; then cd build/deb && lintian --fail-on error,warning *.changes; \
	else echo "SKIP lintian: it is not installed"; fi
	@ls build/deb/*.deb
