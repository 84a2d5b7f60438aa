# make demo | test | prove | fuzz SECONDS=60 | check | audit | release | install

export PATH := $(HOME)/.cargo/bin:$(PATH)
SECONDS ?= 60
PREFIX ?= /usr/local
TARGET = $(or $(CARGO_TARGET_DIR),target)
# bench is a workspace of its own; its program stands beside the others.
IN_BENCH = CARGO_TARGET_DIR=$(abspath $(TARGET))

# Tools of `check`, `audit` and `release`, built on first use.
DENY = scripts/tool cargo-deny 0.20.2
CYCLONEDX = scripts/tool cargo-cyclonedx 0.5.9

.PHONY: demo test prove fuzz check audit release install setup

# Two hosts with a bad network between them, live. Installs what is missing and builds first.
demo: setup
	@cargo build --quiet --locked -p outboard
	@$(TARGET)/debug/outboard demo

# All tests, the real-kernel ones included. One build profile, one boot of the virtual machine.
test: setup
	@scripts/test

# The papers' experiments and the figures beside bare sockets; writes the tables under docs/.
prove: setup
	@scripts/prove

# Every target for so many seconds, as many at a time as there are processors.
fuzz: setup
	@ls fuzz/targets | sed 's/\.rs$$//' | xargs -n 1 -P "$$(nproc)" fuzz/run $(SECONDS)

# Formatting and lints, of the measurements too, the rules for source, links and words, and those for dependencies (deny.toml).
check: setup
	cargo fmt --all --check
	cargo test --quiet --locked -p outboard-testkit --test house --test docs --test words
	cargo clippy --workspace --all-targets --locked -- --deny warnings
	cd bench && cargo fmt --check && $(IN_BENCH) cargo clippy --all-targets --locked -- --deny warnings
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

# The program, the measurements (`outboard bench`), its manual page, its completions and its units, below PREFIX.
install: setup
	cargo build --release --locked -p outboard -p outboard-lab
	cd bench && $(IN_BENCH) cargo build --release --locked
	install -d $(DESTDIR)$(PREFIX)/bin
	install $(addprefix $(TARGET)/release/,outboard outboard-bench netlab) $(DESTDIR)$(PREFIX)/bin
	install -d $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	$(TARGET)/release/outboard man >$(DESTDIR)$(PREFIX)/share/man/man1/outboard.1
	$(TARGET)/release/outboard completions bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/outboard
	install -d $(addprefix $(DESTDIR)$(PREFIX)/lib/,systemd/system systemd/user sysusers.d tmpfiles.d udev/rules.d)
	install -m 644 packaging/systemd/outboard.socket $(DESTDIR)$(PREFIX)/lib/systemd/system
	install -m 644 packaging/systemd/outboard.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/outboard.conf
	install -m 644 packaging/systemd/outboard.tmpfiles $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/outboard.conf
	install -m 644 packaging/systemd/60-outboard.rules $(DESTDIR)$(PREFIX)/lib/udev/rules.d
	install -d $(DESTDIR)$(PREFIX)/share/doc/outboard
	install -m 644 packaging/systemd/outboard.toml docs/guide/service.md $(DESTDIR)$(PREFIX)/share/doc/outboard
	sed 's,@bindir@,$(PREFIX)/bin,' packaging/systemd/outboard.service >$(DESTDIR)$(PREFIX)/lib/systemd/system/outboard.service
	sed 's,@bindir@,$(PREFIX)/bin,' packaging/systemd/user/outboard.service >$(DESTDIR)$(PREFIX)/lib/systemd/user/outboard.service

setup:
	@scripts/setup
