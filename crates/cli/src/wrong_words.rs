//! Wrong command lines: the parser's error, with the command that the user probably means.

use crate::arguments::Arguments;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};
use std::ffi::OsString;

/// Words that other programs have as commands, and the command here.
const COMMANDS: &[(&[&str], &str)] = &[
    (&["list", "ls", "show", "lsusb"], "`outboard devices` lists the devices of this host"),
    (&["discover", "scan", "search", "browse", "hosts"], "`outboard find` finds hosts on the local network"),
    (
        &["use", "mount", "open", "import", "client", "get"],
        "`outboard attach HOST/NAME` uses a device of another host",
    ),
    (
        &["export", "offer", "serve", "server", "publish", "expose", "host"],
        "`outboard share DEVICE` shares a device with other hosts",
    ),
    (&["status", "stats", "ps", "monitor", "info"], "`outboard top` shows every flow of this user"),
    (
        &["stop", "detach", "unshare", "unmount", "disconnect", "kill", "quit"],
        "Ctrl-C ends `outboard share` and `outboard attach`, and so does SIGTERM",
    ),
    (&["unpair", "forget", "revoke", "remove"], "`outboard peers remove NAME` removes a paired host"),
    (&["trust", "login", "key", "keys", "add"], "`outboard pair` makes two hosts known to each other"),
    (
        &["start", "daemon", "service", "up"],
        "`outboard run FILE` runs the shares, attaches and connects of a file",
    ),
    (&["restart", "refresh"], "`outboard reload` makes `outboard run` read its file again"),
    (&["check", "test", "diagnose", "setup"], "`outboard doctor` checks this host"),
    (
        &["pipe", "link", "copy"],
        "`outboard connect SOURCE SINK` connects a device to an application of this host",
    ),
    (&["version"], "`outboard --version`"),
];

/// Parses the command line. A wrong one ends the process with an error.
pub(crate) fn parse() -> Arguments {
    let words = with_help_last(std::env::args_os().collect());
    Arguments::try_parse_from(&words).unwrap_or_else(|mut error| {
        let words: Vec<_> = words.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
        if let Some(tip) = tip(&error, &words) {
            error.remove(ContextKind::SuggestedArg);
            error.remove(ContextKind::SuggestedSubcommand);
            error.remove(ContextKind::Usage);
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
        }
        error.exit()
    })
}

/// Turns `outboard help COMMAND` into `outboard COMMAND --help`.
fn with_help_last(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.get(1).is_some_and(|word| word == "help") {
        words.remove(1);
        words.push("--help".into());
    }
    words
}

/// Returns the command that the user probably means.
fn tip(error: &clap::Error, words: &[String]) -> Option<String> {
    let command = words.first()?.as_str();
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let known = COMMANDS.iter().find(|(others, _)| others.contains(&command));
            known.map(|(_, tip)| (*tip).into())
        }
        ErrorKind::UnknownArgument => {
            let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return None };
            unknown_argument(command, word, words)
        }
        ErrorKind::MissingRequiredArgument if command == "connect" => Some(
            "`outboard connect` needs a device and an application of this host; `outboard attach HOST/NAME` uses a device \
             of another host"
                .into(),
        ),
        _ => None,
    }
}

fn unknown_argument(command: &str, word: &str, words: &[String]) -> Option<String> {
    let all = Arguments::command();
    let has_option = |command: &clap::Command, name: &str| {
        command.get_arguments().any(|argument| argument.get_long() == Some(name))
    };
    if let Some(option) = word.strip_prefix("--") {
        let owners = all.get_subcommands().filter(|owner| !owner.is_hide_set() && has_option(owner, option));
        let owners: Vec<_> = owners.map(|owner| format!("`outboard {}`", owner.get_name())).collect();
        if !owners.is_empty() {
            return Some(format!("`--{option}` is an option of {}", owners.join(" and ")));
        }
        return match option {
            "to" | "into" | "out" | "output" => Some("`--as` names the application".into()),
            "module" | "pair" | "program" | "pipe" => {
                Some("`--via` takes pairs and programs: `--via 'exec(./module.py)'`".into())
            }
            _ if is_device_option(option) => Some(format!(
                "`{option}` is an option of a device, behind its address: `outboard {command} DEVICE:…,{option}=…`"
            )),
            _ => None,
        };
    }
    let has_own = all.find_subcommand(command).is_some_and(|own| has_option(own, word));
    if has_own {
        return Some(format!("write `--{word}`"));
    }
    let before = words.iter().position(|known| known == word)?.checked_sub(1)?;
    let before = words.get(before).filter(|_| before > 0)?;
    match command {
        _ if before.starts_with("exec:") && matches!(command, "share" | "connect" | "attach") => {
            let rest = words.iter().skip_while(|known| *known != before);
            let device: Vec<_> =
                rest.take_while(|word| !word.starts_with("--")).map(String::as_str).collect();
            let device = device.join(" ");
            let device = shlex::try_quote(&device).unwrap_or_default();
            Some(format!("a command is one word for the shell: `outboard {command} {device}`"))
        }
        "share" if word.contains('=') => {
            let separator = if before.contains(':') { ',' } else { ':' };
            Some(format!("options belong to the device: `outboard share {before}{separator}{word}`"))
        }
        "share" => Some(format!("one `outboard share` for each device: `outboard share {word}`")),
        "pair" => Some(format!("write CODE@HOST: `outboard pair {before}@{word}`")),
        "change" => Some(format!("`outboard change {before} --via '{word}'` sets the pipeline")),
        "devices" => Some(format!("`outboard devices {before}` lists the devices of that host")),
        _ => None,
    }
}

fn is_device_option(name: &str) -> bool {
    let mut options = modules::registry::device_classes().iter().flat_map(|class| class.entry().options);
    options.any(|option| option.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(line: &str) -> String {
        let words: Vec<_> = line.split(' ').map(String::from).collect();
        match Arguments::try_parse_from(&words) {
            Ok(_) => panic!("{line} is accepted"),
            Err(error) => tip(&error, &words[1..]).unwrap_or_default(),
        }
    }

    #[test]
    fn a_wrong_line_names_the_right_one() {
        for (line, says) in [
            ("outboard list", "`outboard devices`"),
            ("outboard share pattern rate=100", "`outboard share pattern:rate=100`"),
            ("outboard share pattern:size=10 rate=100", "`outboard share pattern:size=10,rate=100`"),
            ("outboard share pattern via null", "write `--via`"),
            ("outboard share pattern --as stdout", "`--as` is an option of `outboard attach`"),
            ("outboard attach a/b --name c", "`--name` is an option of `outboard share` and `outboard pair`"),
            ("outboard share pattern --frame line", "`outboard share DEVICE:…,frame=…`"),
            ("outboard attach a/b --to c", "`--as` names"),
            ("outboard share pattern --module ./a.py", "`--via 'exec(./module.py)'`"),
            ("outboard share exec:seq -f %g 9 --name n", "`outboard share 'exec:seq -f %g 9'`"),
            ("outboard share exec:seq 1 12", "`outboard share 'exec:seq 1 12'`"),
            ("outboard pair 1234-5678 studio", "`outboard pair 1234-5678@studio`"),
            ("outboard change plc null", "`outboard change plc --via 'null'`"),
            ("outboard connect studio/plc", "`outboard attach HOST/NAME`"),
        ] {
            assert!(answer(line).contains(says), "{line}: {}", answer(line));
        }
    }

    #[test]
    fn no_command_is_a_wrong_word() {
        for word in COMMANDS.iter().flat_map(|(words, _)| words.iter()) {
            assert!(Arguments::command().find_subcommand(word).is_none(), "{word}");
        }
    }

    #[test]
    fn help_is_a_command_and_an_option() {
        let turned = |line: &str| with_help_last(line.split(' ').map(OsString::from).collect());
        assert_eq!(turned("outboard help share"), ["outboard", "share", "--help"]);
        assert_eq!(turned("outboard help"), ["outboard", "--help"]);
        assert_eq!(turned("outboard share help"), ["outboard", "share", "help"]);
    }
}
