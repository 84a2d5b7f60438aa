//! Runs the command lines of the documentation.
//!
//! | block on a page | check |
//! |---|---|
//! | `sh` | every line runs; services start, and stop when the block ends |
//! | `sh needs=camera` | the lines run where [`Hardware`] has a camera; elsewhere their words are checked, and the test prints them |
//! | `console` | lines after `$` run, and print exactly the lines below them |
//! | `toml` | `outboard run --check` accepts it |
//! | any, with `file=NAME` | the text is written to this file before the commands run |
//!
//! `<!-- setup: COMMAND -->` before a block runs a command that the page does not show. Each page has a directory, a
//! state and ports of its own. `HOST`, `studio` and `localhost` are this machine.
//!
//! For `--help`, for the documentation of modules and for code in a sentence, only the words are checked.

#[path = "support/hardware.rs"]
mod hardware;
mod support;

use hardware::Hardware;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use support::{PATIENCE, RUNTIME_DIRECTORY, Scratch, free_port, outboard, outboard_fed};

/// Pages with commands that run, from the root: files, and directories with all pages below them.
const PAGES: &[&str] = &["README.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "lab/README.md", "sdk"];
/// Pages that a command writes.
const MEASURED: &str = "docs/measurements";
/// The page of wrong commands with their answers.
const WRONG_WORDS: &str = "docs/reference/wrong-words.md";
/// The pages of modules, which `outboard modules` shows.
const MODULE_PAGES: &str = "crates";
/// Names of this machine on the pages.
const HOSTS: &[&str] = &["HOST", "studio", "localhost"];
/// An address that a page shows.
const SHOWN_ADDRESS: &str = "127.0.0.1:7846";
/// Names of peers on the pages.
const PEERS: &[&str] = &["laptop", "studio"];
/// Words after `outboard` in the names of keys (`outboard quic tag`).
const NAMES_OF_KEYS: &[&str] = &["encrypt", "flow", "pairing", "quic"];
/// Commands with options of another program, or with values in their place.
const NOT_CHECKED: &[&str] = &["bench", "completions"];
/// Pages that run at a time. Most commands wait.
const PARALLEL: usize = 4;
const POLL: Duration = Duration::from_millis(5);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A block of code on a page.
#[derive(Debug)]
struct Block {
    /// The number of its first line of code.
    line: usize,
    language: String,
    /// `needs` and `file`, after the language.
    words: BTreeMap<String, String>,
    setups: Vec<String>,
    code: Vec<String>,
}

/// Lines with their numbers.
type Lines = Vec<(usize, String)>;

/// Returns the blocks of a page, and the lines outside of them.
fn parse(page: &str) -> (Vec<Block>, Lines) {
    let (mut blocks, mut prose) = (Vec::new(), Vec::new());
    let (mut open, mut setups) = (None::<Block>, Vec::new());
    for (number, line) in (1..).zip(page.lines()) {
        let fence = line.trim_start().strip_prefix("```");
        match (open.take(), fence) {
            (Some(block), Some(_)) => blocks.push(block),
            (Some(mut block), None) => {
                block.code.push(line.to_owned());
                open = Some(block);
            }
            (None, Some(info)) => {
                let mut info = info.split_whitespace();
                let language = info.next().unwrap_or_default().to_owned();
                let words = info.map(|word| word.split_once('=').unwrap_or((word, "")));
                let words = words.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
                let setups = std::mem::take(&mut setups);
                open = Some(Block { line: number + 1, language, words, setups, code: Vec::new() });
            }
            (None, None) => match line.strip_prefix("<!-- setup: ") {
                Some(setup) => setups.push(setup.trim_end_matches("-->").trim().to_owned()),
                None => prose.push((number, line.to_owned())),
            },
        }
    }
    assert!(open.is_none() && setups.is_empty(), "a block does not end, or a setup has no block");
    (blocks, prose)
}

/// Returns the pages below a directory, or the page itself.
fn pages(place: &str) -> Vec<String> {
    let path = root().join(place);
    if path.is_file() {
        return vec![place.to_owned()];
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(&path).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let below = format!("{place}/{name}");
        if below != MEASURED && (entry.path().is_dir() || name.ends_with(".md")) {
            found.extend(pages(&below));
        }
    }
    found.sort();
    found
}

fn read(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap()
}

/// A process group that a command line started.
struct Running {
    place: String,
    line: String,
    child: Child,
    output: PathBuf,
}

impl Running {
    fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.output).unwrap_or_default()).into_owned()
    }

    fn fail(&self, problem: &str) -> ! {
        panic!("{}: {problem}\n$ {}\n{}", self.place, self.line, self.output());
    }

    /// Waits until a service is ready, or until the command has ended with success.
    fn wait(&mut self) {
        let since = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return self.check(status);
            }
            let is_ready = ready(&self.line);
            if is_ready.is_some_and(|is_ready| self.output().lines().any(is_ready)) {
                return;
            }
            if since.elapsed() > PATIENCE {
                self.fail("it neither becomes ready nor ends");
            }
            thread::sleep(POLL);
        }
    }

    fn check(&self, status: ExitStatus) {
        if !status.success() {
            self.fail(&status.to_string());
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let _ = rustix::process::kill_process_group(rustix::process::Pid::from_child(&self.child), signal);
    }

    /// Stops it, and checks that it ends with success.
    fn stop(mut self) {
        self.signal(rustix::process::Signal::TERM);
        let since = Instant::now();
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if since.elapsed() > PATIENCE => self.fail("it does not stop"),
                None => thread::sleep(POLL),
            }
        };
        // A shell that waits for the program ends by the signal itself.
        if status.code().is_some_and(|code| code != 0) {
            self.check(status);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal(rustix::process::Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Returns a check for the line of output by which a service reports that it is ready; `None` for a command that ends.
fn ready(line: &str) -> Option<fn(&str) -> bool> {
    let mut words = line.split_whitespace();
    match (words.next(), words.next()) {
        (Some("outboard"), Some("share")) => {
            Some(|line| line.starts_with("listening on ") || line.starts_with("joined the running share"))
        }
        (Some("outboard"), Some("attach")) => Some(|line| line.contains(" is attached to ")),
        (Some("outboard"), Some("top")) if !line.contains("--once") => Some(|line| line.starts_with("HOST ")),
        (Some("outboard"), Some("pair")) => Some(|line| line.trim_start().starts_with("outboard pair ")),
        _ => None,
    }
}

/// The surroundings of one page.
struct Site<'a> {
    hardware: &'a Hardware,
    page: String,
    scratch: Scratch,
    running: Vec<Running>,
    /// A host that shows a code, and the code.
    pairing: Option<(Running, String)>,
    outputs: usize,
}

impl Site<'_> {
    fn new<'a>(page: &str, hardware: &'a Hardware) -> Site<'a> {
        let scratch = Scratch::new();
        for directory in ["work", "home", "state", "run"] {
            fs::create_dir_all(scratch.path(directory)).unwrap();
        }
        copy(&known(), Path::new(&scratch.path("state/outboard")));
        std::os::unix::fs::symlink(root().join("sdk"), scratch.path("work/sdk")).unwrap();
        Site { hardware, page: page.into(), scratch, running: Vec::new(), pairing: None, outputs: 0 }
    }

    fn command(&self, line: &str) -> Command {
        let program = Path::new(env!("CARGO_BIN_EXE_outboard")).parent().unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{}{path}", program.display(), python_directory());
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(self.scratch.path("work")).env("PATH", path);
        command.env("HOME", self.scratch.path("home")).env("XDG_STATE_HOME", self.scratch.path("state"));
        command.env("XDG_RUNTIME_DIR", self.scratch.path("run"));
        command.envs(self.hardware.display().map(|display| ("DISPLAY", display)));
        command.stdin(Stdio::null()).process_group(0);
        command
    }

    fn start(&mut self, at: usize, line: &str, mut command: Command) -> Running {
        self.outputs += 1;
        let output = PathBuf::from(self.scratch.path(&format!("output-{}", self.outputs)));
        let file = File::create(&output).unwrap();
        command.stdout(file.try_clone().unwrap()).stderr(file);
        let place = format!("{}:{at}", self.page);
        let mut running = Running { place, line: line.into(), child: command.spawn().unwrap(), output };
        running.wait();
        running
    }

    /// Runs one line of a block.
    fn run(&mut self, at: usize, line: &str, port: u16) {
        let line = self.hardware.here(&here(line, port)).replace("/tmp/", &self.scratch.path("work/"));
        if line.starts_with("outboard pair") {
            return self.pair(at, &line, port);
        }
        let command = self.command(&line);
        let running = self.start(at, &line, command);
        self.running.push(running);
    }

    /// Runs `outboard pair`, which waits, or `outboard pair CODE@HOST`, which is another host.
    fn pair(&mut self, at: usize, line: &str, port: u16) {
        if !line.contains("CODE@") {
            let command = self.command(&format!("outboard pair --listen 127.0.0.1:{port}"));
            let running = self.start(at, line, command);
            let output = running.output();
            let code = output.lines().find_map(|line| line.trim().strip_prefix("outboard pair "));
            let code = code.unwrap_or_else(|| running.fail("it shows no code")).to_owned();
            self.pairing = Some((running, code));
            return;
        }
        let Some((mut shows, code)) = self.pairing.take() else {
            panic!("{}:{at}: no command above shows a code", self.page);
        };
        let mut command = self.command(&format!("outboard pair {code}"));
        command.env("XDG_STATE_HOME", self.scratch.path("home"));
        self.start(at, &format!("outboard peers; {line}"), command);
        // No line of output ends the wait now.
        shows.line = "the end of `outboard pair`".into();
        shows.wait();
    }

    /// Runs a block, and stops its services.
    fn block(&mut self, block: &Block) {
        let port = free_port();
        block.setups.iter().for_each(|setup| self.run(block.line, setup, port));
        for (at, line) in (block.line..).zip(&block.code) {
            if !line.trim().is_empty() && !line.starts_with('#') {
                self.run(at, line, port);
            }
        }
        while let Some(running) = self.running.pop() {
            running.stop();
        }
    }

    /// Runs the commands of a session that a page shows, and compares their output.
    fn console(&mut self, block: &Block) {
        let mut lines = (block.line..).zip(&block.code).peekable();
        while let Some((at, line)) = lines.next() {
            let command = line.strip_prefix("$ ");
            let command = command.unwrap_or_else(|| panic!("{}:{at}: no command", self.page));
            let mut shown = Vec::new();
            while let Some((_, line)) = lines.next_if(|(_, line)| !line.starts_with("$ ")) {
                shown.push(line.as_str());
            }
            let ended = self.command(&format!("{command} 2>&1")).output().unwrap();
            let printed = String::from_utf8_lossy(&ended.stdout).into_owned();
            assert_eq!(printed.trim_end(), shown.join("\n"), "{}:{at}: {command}", self.page);
        }
    }
}

/// Returns a line with this machine in place of the hosts that it names.
fn here(line: &str, port: u16) -> String {
    let own = format!("127.0.0.1:{port}");
    let is_shown = line.contains(SHOWN_ADDRESS);
    let mut line = line.replace(SHOWN_ADDRESS, &own).replace("rfb:5901", &format!("rfb:{}", free_port()));
    for host in HOSTS {
        for before in [" ", "//"] {
            line = line.replace(&format!("{before}{host}/"), &format!("{before}{own}/"));
        }
        line = line.replace(&format!(" {host} "), &format!(" {own} "));
        if let Some(rest) = line.strip_suffix(&format!(" {host}")) {
            line = format!("{rest} {own}");
        }
    }
    match line.strip_prefix("outboard share ") {
        Some(rest) if !is_shown => format!("outboard share --listen {own} {rest}"),
        _ => line,
    }
}

/// Copies a directory with the modes of its files.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    fs::set_permissions(to, fs::metadata(from).unwrap().permissions()).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Returns the state of a host that is paired with [`PEERS`].
fn known() -> PathBuf {
    static KNOWN: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        let base = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("docs-{}", std::process::id()));
        let run = |state: &str, words: &[&str]| {
            let mut command = support::command(words);
            command.env("XDG_STATE_HOME", base.join(state)).env("XDG_RUNTIME_DIR", RUNTIME_DIRECTORY);
            command.spawn().unwrap()
        };
        for peer in PEERS {
            let mut shows = support::Service::of(run("own", &["pair", "--listen", "127.0.0.1:0", "--json"]));
            let code = shows.next()["command"].as_str().unwrap().to_owned();
            let code = code.strip_prefix("outboard pair ").unwrap();
            support::end(run(peer, &["pair", code]), "pair").done();
            let name = shows.next()["name"].as_str().unwrap().to_owned();
            support::end(run("own", &["peers", "rename", &name, peer]), "peers rename").done();
        }
        base.join("own/outboard")
    };
    KNOWN.get_or_init(make).clone()
}

/// Returns the directory of the interpreter, with a colon behind it. The program in `PATH` may be a script that starts it, which
/// an isolated program may not do.
fn python_directory() -> &'static str {
    static DIRECTORY: OnceLock<String> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let words = ["-c", "import os, sys; print(os.path.dirname(sys.executable) + ':')"];
        let printed = Command::new("python3").args(words).output().map(|ended| ended.stdout);
        String::from_utf8(printed.unwrap_or_default()).unwrap().trim().into()
    })
}

/// Checks for the interpreters and the part of the kernel that a block uses. The test counts as skipped where one is missing.
fn has_tools(block: &Block) -> bool {
    let tools = [(".py", "python3", "python3"), (".js", "node", "nodejs"), ("ffmpeg ", "ffmpeg", "ffmpeg")];
    let is_used = |mark: &str| block.setups.iter().chain(&block.code).any(|line| line.contains(mark));
    if is_used("isolate=true") && sys::process::landlock_version().is_none() {
        testkit::skip::until_vm("this kernel has no landlock");
        return false;
    }
    tools
        .iter()
        .all(|(mark, program, package)| !is_used(mark) || testkit::skip::has_program(program, package))
}

/// Checks one page. Returns the commands that it did not run.
fn run_page(page: &str) -> Vec<String> {
    let (blocks, prose) = parse(&read(page));
    let needs_screen = |block: &Block| block.words.get("needs").is_some_and(|needs| needs.contains("x11"));
    let hardware = Hardware::find(blocks.iter().any(needs_screen));
    let mut site = Site::new(page, &hardware);
    let mut skipped = Vec::new();
    let given = hardware::given();
    for block in &blocks {
        let place = format!("{page}:{}", block.line);
        if let Some(file) = block.words.get("file") {
            let text = block.code.join("\n") + "\n";
            fs::write(site.scratch.path(&format!("work/{file}")), text).unwrap();
        }
        // In the virtual machine, what every machine can run has run outside.
        let is_given = |needs: &String| given.iter().any(|(need, _)| needs.contains(need.as_str()));
        if !given.is_empty() && !block.words.get("needs").is_some_and(is_given) {
            continue;
        }
        match (block.language.as_str(), block.words.get("needs")) {
            ("sh", Some(needs)) if !hardware.has(needs) => {
                for line in block.code.iter().filter(|line| !line.trim().is_empty()) {
                    check_words(&place, line);
                    skipped.push(format!("{place}: needs {needs}: {line}"));
                }
            }
            ("sh", _) if !has_tools(block) => skipped.push(format!("{place}: tools are missing")),
            ("sh", _) => site.block(block),
            ("console", _) => site.console(block),
            ("toml", _) => {
                fs::write(site.scratch.path("work/checked.toml"), block.code.join("\n")).unwrap();
                let ended = site.command("outboard run --check checked.toml").output().unwrap();
                assert!(ended.status.success(), "{place}: {}", String::from_utf8_lossy(&ended.stderr));
            }
            _ => {
                let hidden = block.code.iter().find(|line| line.trim_start().starts_with("outboard "));
                assert!(hidden.is_none(), "{place}: mark this block with `sh`, so that it runs: {hidden:?}");
            }
        }
    }
    if page != WRONG_WORDS {
        check_prose(page, &prose);
    }
    skipped
}

/// Returns the answer of a wrong command as a cell of a table: without the shown text and its wrong place, and without
/// the hint on help.
fn answer(printed: &str) -> String {
    let printed = printed.strip_prefix("outboard: ").or_else(|| printed.strip_prefix("error: "));
    let is_shown_text = |line: &str| {
        let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
        line.starts_with(' ') && !line.trim().starts_with("tip: ") || number.starts_with(" | ")
    };
    let lines = printed.unwrap_or("no error").lines();
    let lines = lines.filter(|line| !is_shown_text(line) && !line.starts_with("For more information"));
    let lines: Vec<_> = lines.map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("<br>").replace('|', "\\|").replace('<', "&lt;").replace("&lt;br>", "<br>")
}

/// Checks the commands in backticks, and the indented ones.
fn check_prose(page: &str, prose: &Lines) {
    for (number, line) in prose {
        let place = format!("{page}:{number}");
        let spans = line.split('`').skip(1).step_by(2);
        let indented = line.strip_prefix("    ").map(str::trim);
        for command in spans.chain(indented).filter(|command| command.starts_with("outboard ")) {
            check_words(&place, command);
        }
        if let Some(options) = indented.filter(|options| options.starts_with("--via")) {
            check_words(&place, &format!("outboard attach HOST/device {options}"));
        }
    }
}

/// Returns the options of a command of the program, from its help.
fn options_of(command: &[&str]) -> Vec<String> {
    static HELP: Mutex<BTreeMap<String, Vec<String>>> = Mutex::new(BTreeMap::new());
    let mut help = HELP.lock().unwrap_or_else(PoisonError::into_inner);
    let read = || -> Vec<String> {
        let text = outboard(&[command, &["--help"]].concat()).done();
        let words = text.text().split_whitespace();
        let words = words.map(|word| word.trim_end_matches(|c: char| !c.is_alphanumeric()));
        words.filter(|word| word.starts_with('-')).map(str::to_owned).collect()
    };
    help.entry(command.join(" ")).or_insert_with(read).clone()
}

/// Checks the words of a command line without running it: the command, its options, and for `share`, `attach` and
/// `connect` devices and pipelines.
fn check_words(place: &str, line: &str) {
    for (index, part) in line.split("| outboard ").enumerate() {
        let part = if index == 0 { part.to_owned() } else { format!("outboard {part}") };
        if !part.starts_with("outboard ") {
            continue;
        }
        let Some(words) = shlex::split(&part) else { continue };
        let Some(command) = words.get(1).filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase()))
        else {
            continue;
        };
        if [NAMES_OF_KEYS, NOT_CHECKED].concat().contains(&command.as_str()) {
            continue;
        }
        // `outboard peers restrict NAME --all`
        let action = words.get(2).filter(|word| command == "peers" && !word.starts_with('-'));
        let command_line: Vec<&str> =
            [Some(command), action].into_iter().flatten().map(String::as_str).collect();
        let known = options_of(&command_line);
        for word in words.iter().skip(2).filter(|word| word.starts_with("--") && word.len() > 2) {
            let name = word.split('=').next().unwrap_or_default();
            let is_known = known.iter().any(|option| option == name);
            assert!(is_known, "{place}: `{command}` has no option {name}: {line}");
        }
        if let Some(file) = as_run_file(command, &words[2..]) {
            let ended = outboard_fed(&["run", "--check", "-"], file.as_bytes());
            // A page may name programs that are not on this machine.
            let is_absent = ended.stderr.contains(": there is no program `");
            assert!(ended.code == Some(0) || is_absent, "{place}: {line}\n{file}\n{}", ended.stderr);
        }
    }
}

/// Returns the words of a command as a run file; `None` for a command that a run file does not have, or for a form such
/// as `share DEVICE`.
fn as_run_file(command: &str, words: &[String]) -> Option<String> {
    let mut values: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut limits = Vec::new();
    let mut rest = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.strip_prefix("--") {
            Some(option @ ("announce" | "insecure")) => {
                drop(values.insert(option.into(), vec!["true".into()]))
            }
            Some("json" | "stats" | "require-sandbox" | "watch") => {}
            // They name peers and files of another machine.
            Some("allow" | "silence" | "key-file") => drop(words.next()),
            Some("limit") => limits.push(words.next()?.as_str()),
            Some(option) => {
                values.entry(option.replace('-', "_")).or_default().push(quote(words.next()?));
            }
            None if word == "-v" => {}
            None => rest.push(word),
        }
    }
    let is_form =
        |word: &&String| word.contains(['…', '[']) || !word.contains(|c: char| c.is_ascii_lowercase());
    if rest.is_empty() || rest.iter().any(is_form) {
        return None;
    }
    if !limits.is_empty() {
        values.insert("limits".into(), vec![quote(&limits.join(","))]);
    }
    match command {
        "share" if rest.len() == 1 => drop(values.insert("device".into(), vec![quote(rest[0])])),
        "attach" => drop(values.insert("from".into(), rest.iter().map(|word| quote(word)).collect())),
        "connect" if rest.len() == 2 => {
            values.insert("source".into(), vec![quote(rest[0])]);
            values.insert("sink".into(), vec![quote(rest[1])]);
        }
        _ => return None,
    }
    let field = |(name, values): (&String, &Vec<String>)| match values.as_slice() {
        [one] => format!("{name} = {one}\n"),
        many => format!("{name} = [{}]\n", many.join(", ")),
    };
    Some(format!("[[{command}]]\n") + &values.iter().map(field).collect::<String>())
}

/// Returns a string of TOML.
fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[test]
fn commands_on_pages_run() {
    let mut pages: Vec<String> = PAGES.iter().flat_map(|place| pages(place)).collect();
    assert!(pages.len() > 15, "the pages were not found");
    // In the virtual machine, only the pages for which it has what other machines lack.
    let given = hardware::given();
    if !given.is_empty() {
        pages.retain(|page| given.iter().any(|(need, _)| read(page).contains(&format!("needs={need}"))));
    }
    let queue = Mutex::new(pages.iter());
    let skipped = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..PARALLEL {
            // Records of skipped tests have the name of the thread.
            let thread = thread::Builder::new().name("commands_on_pages_run".into());
            let work = || {
                loop {
                    let page = queue.lock().unwrap().next();
                    let Some(page) = page else { break };
                    let found = run_page(page);
                    skipped.lock().unwrap().extend(found);
                }
            };
            thread.spawn_scoped(scope, work).unwrap();
        }
    });
    let mut skipped = skipped.into_inner().unwrap();
    skipped.sort();
    println!("{} commands need more than every machine has:\n{}", skipped.len(), skipped.join("\n"));
}

/// Runs each command of a row of the form `command | answer | right words`, and checks the words of the right one.
#[test]
fn wrong_commands_are_answered_as_the_page_shows() {
    let page = read(WRONG_WORDS);
    let hardware = Hardware::find(false);
    let site = Site::new(WRONG_WORDS, &hardware);
    for block in parse(&page).0 {
        let file = site.scratch.path(&format!("work/{}", block.words["file"]));
        fs::write(file, block.code.join("\n") + "\n").unwrap();
    }
    for (name, text) in [("film.mjpeg", "not a film\n"), ("film.mp4", ""), ("notes.txt", ""), ("key", "")] {
        fs::write(site.scratch.path(&format!("work/{name}")), text).unwrap();
    }
    fs::set_permissions(site.scratch.path("work/key"), PermissionsExt::from_mode(0o644)).unwrap();
    let mut answered = String::new();
    let mut rows = 0;
    for line in page.lines() {
        let cells = line.replace("\\|", "\u{0}");
        let cells: Vec<_> = cells.split('|').map(|cell| cell.trim().replace('\u{0}', "|")).collect();
        let [_, command, _, right, _] = cells.as_slice() else {
            answered += &format!("{line}\n");
            continue;
        };
        let Some(command) = command.strip_prefix('`').and_then(|command| command.strip_suffix('`')) else {
            answered += &format!("{line}\n");
            continue;
        };
        rows += 1;
        let ended = site.command(&format!("{command} 2>&1")).output().unwrap();
        assert!(matches!(ended.status.code(), Some(1 | 2)), "{command}: {}", ended.status);
        let shown = answer(&String::from_utf8_lossy(&ended.stdout));
        let row = [command, right.as_str()].map(|cell| cell.replace('|', "\\|"));
        answered += &format!("| `{}` | {shown} | {} |\n", row[0], row[1]);
        spans(right).into_iter().for_each(|right| check_words(WRONG_WORDS, right));
    }
    assert!(rows >= 20, "{rows} rows");
    assert!(answered == page, "the answers are:\n{answered}");
}

#[test]
fn commands_of_modules_and_help_are_valid() {
    let places = pages(MODULE_PAGES);
    assert!(places.len() > 30, "the modules were not found");
    for page in places {
        let (blocks, prose) = parse(&read(&page));
        for line in blocks.iter().flat_map(|block| &block.code) {
            check_words(&page, line);
        }
        check_prose(&page, &prose);
    }
    let main = outboard(&["--help"]).done();
    let commands = main.text().lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands = commands.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    let commands: Vec<&str> = commands.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.contains(&"share"), "{commands:?}");
    for command in commands.into_iter().filter(|command| !NOT_CHECKED.contains(command)) {
        let help = outboard(&[command, "--help"]).done();
        for line in help.text().lines().map(str::trim).filter(|line| line.starts_with("outboard ")) {
            check_words(&format!("outboard {command} --help"), line);
        }
    }
}

#[test]
fn reference_tables_name_every_module() {
    for module in outboard(&["modules", "--json"]).done().json_lines() {
        let (kind, name) = (module["kind"].as_str().unwrap(), module["name"].as_str().unwrap());
        let page = match kind {
            "pair" => "docs/reference/pairs.md",
            "transport" => "docs/reference/transports.md",
            "limits" => continue,
            _ => "docs/reference/devices.md",
        };
        let names = |line: &str| {
            let mut spans = line.split('`').skip(1).step_by(2);
            line.starts_with('|') && spans.any(|span| span.split(':').next() == Some(name))
        };
        assert!(read(page).lines().any(names), "{page} has no row for {kind} `{name}`");
    }
}

/// Returns the words in backticks of a page.
fn spans(page: &str) -> Vec<&str> {
    page.split('`').skip(1).step_by(2).collect()
}

#[test]
fn json_reference_names_every_event_and_statistic() {
    let page = read("docs/reference/json.md");
    let source = read("crates/broker/src/events.rs");
    let (_, events) = source.split_once("pub enum Event {").expect("the events");
    let (events, _) = events.split_once("\n}\n").expect("their end");
    let mut row = Vec::new();
    let mut is_flat = false;
    for line in events.lines() {
        let name: String = line.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        match line.trim() {
            "#[serde(flatten)]" => is_flat = true,
            text if text.ends_with('{') => {
                let kebab = name.chars().flat_map(|c| match c.is_uppercase() {
                    true => vec!['-', c.to_ascii_lowercase()],
                    false => vec![c],
                });
                let start = format!("| `{}` |", kebab.skip(1).collect::<String>());
                let found = page.lines().find(|row| row.starts_with(&start));
                row = spans(found.unwrap_or_else(|| panic!("no row {start}")));
            }
            text if name.starts_with(char::is_lowercase) && text.ends_with(',') => {
                assert!(std::mem::take(&mut is_flat) || row.contains(&&*name), "`{name}` is not in {row:?}");
            }
            _ => {}
        }
    }
    let words = spans(&page);
    for line in read("crates/flow/src/stats.rs").lines() {
        let field = line.strip_prefix("    pub ").filter(|rest| !rest.starts_with("fn "));
        let Some((name, _)) = field.and_then(|rest| rest.split_once(':')) else {
            continue;
        };
        assert!(words.contains(&name), "`{name}` is missing");
    }
}
