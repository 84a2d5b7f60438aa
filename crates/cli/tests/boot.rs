//! A Debian in a virtual machine of QEMU boots from the disk of a server and works on it, while sessions are killed. Its image takes minutes
//! to make, so that this runs with `OUTBOARD_LONG` only, as `scripts/prove` does.

mod support;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use support::Scratch;
use support::disk::Connection;
use support::disk_server::{DiskServer, Nbdkit};
use support::relay::Relay;

/// The programs of this test and their packages.
const PROGRAMS: [(&str, &str); 4] = [
    ("mmdebstrap", "mmdebstrap"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("mkfs.ext4", "e2fsprogs"),
    ("nbdkit", "nbdkit"),
];
/// Beside the system, the files of [`SERVICE`] fit.
const DISK_BYTES: u64 = 1200 << 20;
/// Time between two kills.
const PAUSE: Duration = Duration::from_millis(700);
/// An emulated processor boots in minutes, and a busy host takes several times as long.
const PATIENCE: Duration = Duration::from_secs(3000);
const DONE: &str = "ALL WRITTEN";
/// Writes files, each durable, then their sums, and ends the machine. systemd makes `$` of `$$`.
const SERVICE: &str = "[Service]
Type=oneshot
ExecStart=/bin/sh -c 'cd /root && for i in $$(seq 100); do head -c 300000 /dev/urandom >file$$i && sync file$$i; done; \
                      sha256sum file* >sums && sync sums && echo ALL WRITTEN >/dev/kmsg'
ExecStopPost=/bin/systemctl --no-block poweroff
[Install]
WantedBy=multi-user.target
";

/// Runs a program to its end and returns its output.
#[track_caller]
fn run(words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{words:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Makes the image of a Debian of this host's release. Returns the directory with its kernel.
fn make_image(scratch: &Scratch, image: &str) -> String {
    let (root, service) = (scratch.path("root"), scratch.path("check.service"));
    fs::write(&service, SERVICE).unwrap();
    let release = fs::read_to_string("/etc/os-release").unwrap();
    let name = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let copy = format!("--customize-hook=copy-in {service} /etc/systemd/system");
    let enable = "--customize-hook=chroot \"$1\" systemctl enable check.service";
    let packages = "--include=linux-image-amd64,systemd-sysv,udev";
    let release = name.unwrap_or("stable");
    run(&["mmdebstrap", "--variant=minbase", packages, &copy, enable, release, &root]);
    File::create(image).unwrap().set_len(DISK_BYTES).unwrap();
    run(&["mkfs.ext4", "-q", "-d", &root, image]);
    root
}

/// Compares the files of the image with their sums.
fn check_image(scratch: &Scratch, image: &str) {
    run(&["e2fsck", "-fn", image]);
    let files = scratch.path("files");
    fs::create_dir(&files).unwrap();
    run(&["debugfs", "-R", &format!("rdump /root {files}"), image]);
    let sums = run(&["sh", "-c", &format!("cd {files}/root && sha256sum -c sums")]);
    assert_eq!(sums.lines().filter(|line| line.ends_with(": OK")).count(), 100, "{sums}");
}

#[test]
fn a_debian_boots_while_sessions_are_killed() {
    if std::env::var_os("OUTBOARD_LONG").is_none()
        || !PROGRAMS.iter().all(|(program, package)| testkit::skip::has_program(program, package))
    {
        return;
    }
    let scratch = Scratch::new();
    let (image, console) = (scratch.path("disk.img"), scratch.path("console"));
    let root = make_image(&scratch, &image);
    let (server, relay) = (Nbdkit::start(&["file", &image]), Relay::default());
    let address = relay.start(&server.address());
    let connection = Connection::start(&scratch, &server.disk_at(&address.to_string()), "4");
    let mut machine = Command::new("qemu-system-x86_64")
        .args([
            "-machine",
            "accel=tcg",
            "-cpu",
            "max,la57=off",
            "-m",
            "512",
            "-display",
            "none",
            "-no-reboot",
            "-net",
            "none",
        ])
        .args(["-serial", &format!("file:{console}")])
        .args(["-kernel", &format!("{root}/vmlinuz"), "-initrd", &format!("{root}/initrd.img")])
        .args(["-append", "root=/dev/vda rw console=ttyS0 loglevel=7"])
        .args(["-drive", &format!("file={},if=virtio,format=raw", connection.uri())])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let said = || String::from_utf8_lossy(&fs::read(Path::new(&console)).unwrap_or_default()).into_owned();
    let (begun, mut kills) = (Instant::now(), 0);
    let status = loop {
        if let Some(status) = machine.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > PATIENCE {
            let _ = machine.kill();
            panic!("the machine does not end: {}", said());
        }
        thread::sleep(PAUSE);
        // One, two or all.
        relay.cut([1, 2, usize::MAX][kills % 3]);
        kills += 1;
    };
    let said = said();
    assert!(status.success() && said.contains(DONE), "{status}: {said}");
    // The kernel names a failed request.
    assert!(!said.contains("I/O error"), "{said}");
    let ended = connection.stop().done();
    assert!(ended.text().contains("is lost"), "{ended:?}");
    drop(server);
    check_image(&scratch, &image);
    println!(
        "a Debian booted and wrote 100 files while sessions were killed {kills} times, in {:?}",
        begun.elapsed()
    );
}
