# The service as docs/guide/service.md installs it, under a real systemd, and another host that is paired with it: a user with an
# identity of its own. To be sourced, with the service's run file in `run_file`; then `outboard.socket` is not started yet.
#
# systemd is process 1 of a process namespace of its own here, with our units and little else.
set -u
packaging=$(dirname "$(dirname "$LAB")")/packaging/systemd
units=/usr/local/lib/systemd/system
cd "$(mktemp -d)" || exit 1

fail() {
  echo "$*"
  inside journalctl --no-pager --output=cat --unit outboard.service | tail -n 30
  tail -n 10 systemd.log ./*attach.log 2>/dev/null
  exit 1
}

# until_true WHAT COMMAND...: waits until the command succeeds.
until_true() {
  what=$1; shift
  end=$(($(date +%s) + 300))
  until "$@" >until.log 2>&1; do
    [ "$(date +%s)" -lt $end ] || { cat until.log; fail "not within 300 s: $what"; }
    sleep 0.2
  done
}

# Beside process 1 of the machine that systemd runs.
inside() { nsenter --pid --mount --cgroup --target "$(pgrep -P $machine)" "$@"; }
# The service's own commands, as docs/guide/service.md has them.
as_service() { inside setpriv --reuid outboard --regid outboard --init-groups env HOME=/var/lib/outboard XDG_RUNTIME_DIR=/run/outboard outboard "$@"; }
# Another host, to the service: a user with an identity of its own.
elsewhere() { env XDG_STATE_HOME=/tmp/elsewhere outboard "$@"; }
state() { inside systemctl show --property ActiveState --value "$1"; }
is() { [ "$(state "$1")" = "$2" ]; }
offers() { elsewhere devices 127.0.0.1 | grep -q "$1"; }
withdrawn() { ! elsewhere devices 127.0.0.1 | grep -q "$1"; }

systemctl() { inside systemctl "$@"; }
began_anew() { is outboard.service active && [ "$(inside systemctl show --property MainPID --value outboard.service)" != "$process" ]; }

command -v /lib/systemd/systemd >/dev/null || { echo "no systemd here"; exit 77; }

# What `make install` does, without building again.
install -m 755 "$OUTBOARD" /usr/local/bin/outboard
install -d $units /usr/local/lib/sysusers.d /usr/local/lib/tmpfiles.d /etc/outboard
install -m 644 "$packaging/outboard.socket" $units
sed 's,@bindir@,/usr/local/bin,' "$packaging/outboard.service" >$units/outboard.service
install -m 644 "$packaging/outboard.sysusers" /usr/local/lib/sysusers.d/outboard.conf
install -m 644 "$packaging/outboard.tmpfiles" /usr/local/lib/tmpfiles.d/outboard.conf
install -m 644 "$packaging/60-outboard.rules" /etc/udev/rules.d
# A machine that has not loaded the module yet.
modprobe -r uinput || fail "uinput is in use"
# What docs/guide/service.md says.
systemd-sysusers || fail "systemd-sysusers"
systemd-tmpfiles --create outboard.conf || fail "systemd-tmpfiles"
# As the package does it: here, systemd does not run udevd.
modprobe -qa uinput uhid || fail "modprobe"
touch /etc/udev/rules.d/60-outboard.rules
udevadm control --reload && udevadm trigger --settle
[ "$(stat -c %G:%a /dev/uinput)" = outboard:660 ] || fail "/dev/uinput: $(stat -c %G:%a /dev/uinput)"
printf '%s\n' "$run_file" >/etc/outboard/outboard.toml

# The rest of this machine stays asleep.
mkdir -p /run/systemd/system
for unit in systemd-udevd.service systemd-udevd-kernel.socket systemd-udevd-control.socket systemd-udev-trigger.service \
  systemd-binfmt.service proc-sys-fs-binfmt_misc.automount systemd-timesyncd.service systemd-tmpfiles-setup.service \
  systemd-tmpfiles-setup-dev.service systemd-modules-load.service systemd-journal-flush.service \
  systemd-remount-fs.service systemd-sysctl.service kmod-static-nodes.service systemd-update-utmp.service; do
  ln -s /dev/null /run/systemd/system/$unit
done
printf '[Unit]\nRequires=sysinit.target\n' >/run/systemd/system/lab.target
env -i container=lab PATH="$PATH" unshare --pid --fork --mount --cgroup --kill-child --mount-proc \
  /lib/systemd/systemd --system --unit=lab.target --log-target=console >systemd.log 2>&1 &
machine=$!
until_true "systemd is up" is lab.target active

as_service pair --json >pair.log 2>&1 &
pairing=$!
until_true "a code is shown" grep -q '"code":' pair.log
elsewhere pair "$(sed -n 's/.*"code":"\([^"]*\)".*/\1/p' pair.log)@127.0.0.1" || fail "pairing"
wait $pairing || fail "the service's end of pairing"
