//! The files of the packages, installed below a directory as `make install-program` does it, and the build from the source.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{Scratch, outboard};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Installs the program's files below `prefix`, and returns its `share`. `None`: a tool is missing, and the test is skipped.
fn installed(scratch: &Scratch, prefix: &str) -> Option<PathBuf> {
    if !testkit::skip::has_program("make", "make") {
        return None;
    }
    let destination = scratch.path("root");
    let variables = [
        format!("PROGRAM={}", env!("CARGO_BIN_EXE_outboard")),
        format!("DESTDIR={destination}"),
        format!("PREFIX={prefix}"),
    ];
    let made = Command::new("make")
        .args(["--silent", "--no-print-directory", "install-program"])
        .args(variables)
        .current_dir(root())
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Some(PathBuf::from(destination + prefix).join("share"))
}

/// Returns all files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Returns the targets of the links and pictures on a page, without its code blocks.
fn links(page: &str) -> Vec<&str> {
    let blocks = page.split("```").step_by(2);
    let targets =
        blocks.flat_map(|text| text.split("](").skip(1)).filter_map(|rest| rest.split([')', ' ']).next());
    targets.collect()
}

#[test]
fn links_on_installed_pages_lead_to_installed_files() {
    let scratch = Scratch::new();
    let Some(share) = installed(&scratch, "/usr") else { return };
    let mut pages = files(&share.join("doc/outboard"));
    pages.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    let mut broken = BTreeSet::new();
    let mut checked = 0;
    for path in &pages {
        let page = fs::read_to_string(path).unwrap();
        for link in links(&page) {
            let target = link.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            checked += 1;
            if !path.parent().unwrap().join(target).exists() {
                broken.insert(format!("{}: {link}", path.strip_prefix(&share).unwrap().display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(pages.len() > 30 && checked > 100, "{} pages, {checked} links", pages.len());
    assert!(pages.iter().any(|path| path.ends_with("guide/service.md")));
}

#[test]
fn the_unit_allows_ports_and_the_guide_names_a_line_for_each_kind_of_disk() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let (unit, page) = (read("packaging/systemd/outboard.service"), read("docs/guide/disks.md"));
    for port in ["ttyS", "ttyUSB", "ttyACM", "ttyAMA"] {
        assert!(unit.contains(&format!("\nDeviceAllow=char-{port} rw\n")), "{port}");
    }
    // The groups of serial ports: Debian's and Fedora's, Arch's.
    let users = read("packaging/systemd/outboard.sysusers");
    for group in ["dialout", "uucp"] {
        assert!(users.contains(&format!("\nm outboard {group}\n")), "{group}");
    }
    for disk in ["sd", "blkext", "mmc", "virtblk"] {
        assert!(page.contains(&format!("`DeviceAllow=block-{disk} rw`")), "{disk}");
    }
}

#[test]
fn the_page_of_the_service_keeps_the_one_of_a_user_after_the_logout() {
    let page = fs::read_to_string(root().join("docs/guide/service.md")).unwrap();
    let (_, bullet) = page.split_once("\n- **One user**").unwrap();
    let (bullet, _) = bullet.split_once("\n\n").unwrap();
    assert!(bullet.contains("loginctl enable-linger"), "{bullet}");
}

#[test]
fn commands_on_installed_pages_use_the_installed_sdks() {
    for prefix in ["/usr", "/usr/local"] {
        let scratch = Scratch::new();
        let Some(share) = installed(&scratch, prefix) else { return };
        let page = fs::read_to_string(share.join("doc/outboard/guide/modules.md")).unwrap();
        let copied = page.lines().filter(|line| line.starts_with("cp ")).flat_map(|line| line.split(' '));
        let sources: Vec<&str> = copied.filter(|path| path.contains("sdk/")).collect();
        assert!(!sources.is_empty(), "{page}");
        for path in sources {
            let installed = path.strip_prefix(&format!("{prefix}/share/"));
            assert!(installed.is_some_and(|path| share.join(path).exists()), "{prefix}: {path}");
        }
    }
}

#[test]
fn a_user_who_calls_sudo_builds_and_root_only_installs() {
    if !testkit::skip::has_program("make", "make") {
        return;
    }
    // A source of `nobody`, if this user can give files away.
    let scratch = Scratch::new();
    let source = scratch.path("source");
    fs::create_dir(&source).unwrap();
    fs::copy(root().join("Makefile"), format!("{source}/Makefile")).unwrap();
    let is_root = chown(&source, Some(65534), None).is_ok();
    // The commands, which do not run.
    let commands = |caller: &str| {
        let mut make = Command::new("make");
        make.args(["--dry-run", "install", "FEATURES=media"]).env("SUDO_USER", caller).current_dir(&source);
        String::from_utf8(make.output().unwrap().stdout).unwrap()
    };
    let by_sudo = commands("nobody");
    assert!(by_sudo.contains("/bin/outboard\n"), "{by_sudo}");
    if is_root {
        assert!(
            by_sudo.contains("scripts/setup --packages media\nsudo -u nobody -H make programs"),
            "{by_sudo}"
        );
        assert!(!by_sudo.contains("cargo build"), "{by_sudo}");
    }
    // Root builds in a directory of somebody else than the caller, such as a copy of its own.
    for caller in ["", "root", "ada"] {
        let commands = commands(caller);
        assert!(commands.contains("cargo build") && !commands.contains("sudo"), "{commands}");
    }
}

#[test]
fn a_directory_holds_the_packages_of_one_version() {
    if !testkit::skip::has_program("make", "make") {
        return;
    }
    let scratch = Scratch::new();
    fs::copy(root().join("Makefile"), scratch.path("Makefile")).unwrap();
    let packages = scratch.path("target/package");
    fs::create_dir_all(&packages).unwrap();
    // A build that makes empty packages.
    let build = "touch $1/outboard_2_amd64.deb $1/outboard-2-x86_64.tar.gz";
    for (program, script) in [("scripts/setup", ""), ("packaging/package", build)] {
        let path = scratch.path(program);
        fs::create_dir_all(Path::new(&path).parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for name in ["outboard_1_amd64.deb", "outboard-1-x86_64.tar.gz", "outboard_1_notes"] {
        fs::write(format!("{packages}/{name}"), "").unwrap();
    }
    let mut make = Command::new("make");
    make.arg("package").env_remove("CARGO_TARGET_DIR").current_dir(scratch.path(""));
    let made = make.output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mut names: Vec<_> =
        files(Path::new(&packages)).iter().map(|path| path.file_name().unwrap().to_owned()).collect();
    names.sort();
    assert_eq!(names, ["outboard-2-x86_64.tar.gz", "outboard_1_notes", "outboard_2_amd64.deb"]);
}

/// A fresh Debian has neither.
#[test]
fn the_first_command_of_a_build_installs_git_and_make() {
    for page in ["README.md", "docs/guide/getting-started.md"] {
        let text = fs::read_to_string(root().join(page)).unwrap();
        let (before, _) = text.split_once("\ngit clone ").expect(page);
        assert!(before.lines().last().unwrap().starts_with("sudo apt install git make "), "{page}");
    }
}

#[test]
fn the_toolchain_of_other_projects_stays() {
    let scratch = Scratch::new();
    let home = scratch.path("home");
    let programs = format!("{home}/.cargo/bin");
    fs::create_dir_all(&programs).unwrap();
    // A rustup whose default is too old.
    let rustup = "echo \"$@\" >>$HOME/calls";
    let cargo = "grep -q '^override set' $HOME/calls 2>/dev/null && echo cargo 9.0.0 || echo cargo 1.0.0";
    for (name, script) in [("rustup", rustup), ("cargo", cargo), ("cc", "")] {
        let path = format!("{programs}/{name}");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let setup = Command::new(root().join("scripts/setup")).env("HOME", &home).output().unwrap();
    assert!(setup.status.success(), "{}", String::from_utf8_lossy(&setup.stderr));
    let calls = fs::read_to_string(format!("{home}/calls")).unwrap();
    let calls: Vec<_> = calls.lines().map(|call| call.split(' ').take(2).collect::<Vec<_>>()).collect();
    assert_eq!(calls, [["toolchain", "install"], ["override", "set"]]);
}

/// Each distribution has libclang in another place, and other names for its packages.
#[test]
fn libclang_of_any_distribution_is_found() {
    let setup = fs::read_to_string(root().join("scripts/setup")).unwrap();
    let line = setup.lines().find_map(|line| line.strip_prefix("libclang=\"")).expect("its places");
    let places: Vec<_> = line.trim_end_matches('"').split('|').collect();
    for found in ["llvm-14/lib/libclang.so", "64/libclang.so", "64/llvm19/lib64/libclang.so", "/libclang.so"]
    {
        let path = format!("/usr/lib{}{found}", if found.starts_with("llvm-") { "/" } else { "" });
        let matches = |pattern: &str| {
            let program = format!("case {path} in {pattern}) ;; *) exit 1 ;; esac");
            Command::new("sh").args(["-c", &program]).status().unwrap().success()
        };
        assert!(places.iter().any(|pattern| matches(pattern)), "{path}");
    }
    // One place is enough, and a machine without any is told the name.
    let scratch = Scratch::new();
    let library = scratch.path("libclang.so");
    let check = || {
        let word = format!("/nowhere/*.so|{library}:libclang-dev");
        let mut setup = Command::new(root().join("scripts/setup"));
        setup.args(["--packages", &word]).env("PATH", empty_path(&scratch)).output().unwrap()
    };
    let missing = check();
    assert!(!missing.status.success());
    assert!(String::from_utf8_lossy(&missing.stderr).contains("libclang-dev"), "{missing:?}");
    fs::write(&library, "").unwrap();
    assert!(check().status.success());
}

/// A path with a compiler, a Rust and the shell's tools, but no `apt-get`.
fn empty_path(scratch: &Scratch) -> String {
    let programs = scratch.path("bin");
    fs::create_dir_all(&programs).unwrap();
    for name in ["cc", "curl", "cargo", "sh", "sed", "tr", "ls", "dirname", "cut", "sort", "head", "printf"] {
        let found = ["/usr/bin", "/bin"].map(|place| format!("{place}/{name}"));
        let program = found.iter().find(|path| fs::metadata(path).is_ok());
        // A stand-in for programs that are only looked for.
        let program = program.cloned().unwrap_or_else(|| "/bin/true".into());
        let _ = std::os::unix::fs::symlink(program, format!("{programs}/{name}"));
    }
    programs
}

#[test]
fn every_command_has_an_installed_manual_page() {
    let scratch = Scratch::new();
    let Some(share) = installed(&scratch, "/usr") else { return };
    let page = |name: &str| {
        let path = share.join(format!("man/man1/{name}.1"));
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    assert_eq!(page("outboard"), outboard(&["man"]).done().text());
    // Each page names those of its subcommands.
    let mut names = vec![String::from("outboard")];
    let mut next = 0;
    while let Some(name) = names.get(next) {
        let text = page(name).replace("\\-", "-");
        let references = text.split_whitespace().filter_map(|word| word.strip_suffix("(1)"));
        names.extend(references.map(String::from).collect::<Vec<_>>());
        next += 1;
    }
    for name in ["outboard-share", "outboard-pair", "outboard-peers-add", "outboard-run"] {
        assert!(names.iter().any(|known| known == name), "{name} is not in {names:?}");
    }
    assert!(!names.iter().any(|name| name == "outboard-worker"), "{names:?}");
}
