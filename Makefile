# make demo | test | prove | fuzz SECONDS=60 | lint | check | audit | release | package | prove-package | install

export PATH := $(HOME)/.cargo/bin:$(PATH)
SECONDS ?= 60
PREFIX ?= /usr/local
TARGET = $(or $(CARGO_TARGET_DIR),target)
PROGRAM = $(TARGET)/release/outboard
# With `sudo make install` in a user's directory, the user who called sudo: builds run as that user.
BUILDER := $(if $(filter 0,$(shell id -u)),$(filter $(filter-out root,$(SUDO_USER)),$(shell stat -c %U .)))
ZSH_FUNCTIONS = share/zsh/site-functions
# bench is a workspace of its own; its program stands beside the others.
IN_BENCH = CARGO_TARGET_DIR=$(abspath $(TARGET))

# Tools of `check`, `audit` and `release`, built on first use.
DENY = scripts/tool cargo-deny 0.20.2
CYCLONEDX = scripts/tool cargo-cyclonedx 0.5.9

.PHONY: demo test prove fuzz lint check audit release package prove-package programs install install-program setup

# Two hosts with a bad network between them, live. Installs what is missing and builds first.
demo: setup
	@cargo build --quiet --locked -p outboard
	@$(TARGET)/debug/outboard demo

# All tests, the real-kernel ones included.
test: setup
	@scripts/test

# The papers' experiments and the figures beside bare sockets; writes the tables under docs/.
prove: setup
	@scripts/prove

# Every target for so many seconds, as many at a time as there are processors.
fuzz: setup
	@scripts/setup media
	@ls fuzz/targets | sed 's/\.rs$$//' | xargs -n 1 -P "$$(nproc)" fuzz/run $(SECONDS)

# Formatting and lints, of the measurements too.
lint: setup
	@scripts/setup media
	cargo fmt --all --check
	cd bench && cargo fmt --check
	cargo clippy --workspace --all-targets --locked --features outboard/media -- --deny warnings
	cd bench && $(IN_BENCH) cargo clippy --all-targets --locked -- --deny warnings

# Besides, the rules for source, links and words, and those for dependencies (deny.toml).
check: lint
	cargo test --quiet --locked -p outboard-testkit --test house --test docs --test words
	"$$($(DENY))" check licenses bans sources
	"$$($(DENY))" --manifest-path bench/Cargo.toml --config deny.toml check licenses bans sources
	"$$($(DENY))" --manifest-path fuzz/Cargo.toml --config deny.toml check bans sources

# Known vulnerabilities and withdrawn versions of dependencies. Needs the public advisory database.
audit: setup
	@"$$($(DENY))" fetch db || { echo "audit: nothing was checked: the public advisory database" \
	    "(https://github.com/RustSec/advisory-db) cannot be fetched" >&2; exit 1; }
	@for part in . bench fuzz; do \
	    "$$($(DENY))" --manifest-path $$part/Cargo.toml --config deny.toml check advisories || exit 1; done

# The program as it is distributed, with the list of its dependencies (SBOM, CycloneDX) beside it.
release: setup
	cargo build --release --locked -p outboard
	@"$$($(CYCLONEDX))" cyclonedx --quiet --manifest-path crates/cli/Cargo.toml --format json --spec-version 1.5 --override-filename outboard.cdx
	@mv crates/cli/outboard.cdx.json $(TARGET)/release/ && rm -f $$(git ls-files --others '*/outboard.cdx.json')
	@ls -l $(addprefix $(TARGET)/release/,outboard outboard.cdx.json)

# The programs of `install`. Root only installs packages: files of root in `target` would break each later build of the user.
ifdef BUILDER
programs:
	@scripts/setup --packages $(FEATURES)
	sudo -u $(BUILDER) -H make programs FEATURES='$(FEATURES)' CARGO_TARGET_DIR='$(abspath $(TARGET))'
else
programs: setup
	cargo build --release --locked -p outboard -p outboard-lab $(FEATURES:%=--features outboard/%)
	cd bench && $(IN_BENCH) cargo build --release --locked
endif

# The program with its files (`install-program`), and the measurements (`outboard bench`), below PREFIX. With FEATURES=media also sound,
# cameras of PipeWire, desktops of GNOME and KDE, and VP8.
install: programs
	$(MAKE) install-program
	install $(addprefix $(TARGET)/release/,outboard-bench netlab) $(DESTDIR)$(PREFIX)/bin

# PROGRAM, its manual pages, completions, units for systemd, the SDKs and documentation.
SHARE = $(DESTDIR)$(PREFIX)/share
LIB = $(DESTDIR)$(PREFIX)/lib
install-program:
	install -d $(DESTDIR)$(PREFIX)/bin $(addprefix $(LIB)/,systemd/system systemd/user sysusers.d tmpfiles.d sysctl.d udev/rules.d)
	install -d $(addprefix $(SHARE)/,man/man1 doc/outboard bash-completion/completions fish/vendor_completions.d)
	install -d $(DESTDIR)$(PREFIX)/$(ZSH_FUNCTIONS)
	install $(PROGRAM) $(DESTDIR)$(PREFIX)/bin/outboard
	$(PROGRAM) man $(SHARE)/man/man1
	$(PROGRAM) completions bash >$(SHARE)/bash-completion/completions/outboard
	$(PROGRAM) completions fish >$(SHARE)/fish/vendor_completions.d/outboard.fish
	$(PROGRAM) completions zsh >$(DESTDIR)$(PREFIX)/$(ZSH_FUNCTIONS)/_outboard
	install -m 644 packaging/systemd/outboard.socket $(LIB)/systemd/system
	sed 's,@bindir@,$(PREFIX)/bin,' packaging/systemd/outboard.service >$(LIB)/systemd/system/outboard.service
	sed 's,@bindir@,$(PREFIX)/bin,' packaging/systemd/user/outboard.service >$(LIB)/systemd/user/outboard.service
	install -m 644 packaging/systemd/outboard.sysusers $(LIB)/sysusers.d/outboard.conf
	install -m 644 packaging/systemd/outboard.tmpfiles $(LIB)/tmpfiles.d/outboard.conf
	install -m 644 packaging/systemd/outboard.sysctl $(LIB)/sysctl.d/10-outboard.conf
	install -m 644 packaging/systemd/60-outboard.rules $(LIB)/udev/rules.d
	install -m 644 packaging/systemd/outboard.toml $(SHARE)/doc/outboard
	packaging/pages $(SHARE)/doc/outboard $(PREFIX)
	install -d $(addsuffix /examples,$(addprefix $(SHARE)/outboard/sdk/,python c js))
	install -m 644 sdk/python/outboard_module.py $(SHARE)/outboard/sdk/python
	install -m 644 sdk/c/outboard_module.h $(SHARE)/outboard/sdk/c
	install -m 644 sdk/js/outboard-module.js $(SHARE)/outboard/sdk/js
	install -m 755 sdk/python/examples/*.py $(SHARE)/outboard/sdk/python/examples
	install -m 644 sdk/c/examples/*.c $(SHARE)/outboard/sdk/c/examples
	install -m 755 sdk/js/examples/*.js $(SHARE)/outboard/sdk/js/examples

# A .deb, and a tarball with a static program, below target/package. Those of earlier versions leave: `outboard_*_amd64.deb` on the pages
# stands for one file.
package: setup
	@rm -f $(TARGET)/package/outboard_*_amd64.deb $(TARGET)/package/outboard-*-x86_64.tar.gz
	@packaging/package $(TARGET)/package

# Packages of two copies of this commit are equal; they are installed, upgraded and removed. The long tests of the virtual machine. Needs root and Debian.
prove-package: setup
	@packaging/prove
	@cargo build --quiet --locked -p outboard && lab/vm-test tests/vm/long

setup:
	@scripts/setup $(FEATURES)
