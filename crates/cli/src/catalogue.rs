//! `devices` and `modules`: lists local devices and the module tables.

use crate::output::{Failure, print, print_json_lines};
use contract::{FlowDirection, ModuleEntry, OptionSpec, Role, Scope, nearest};
use modules::registry;
use serde::Serialize;
use std::fmt::Write;

#[derive(Serialize)]
struct Device {
    device: String,
    summary: String,
    problem: Option<String>,
}

/// `outboard devices`.
pub(crate) fn devices(json: bool) -> Result<(), Failure> {
    let listings = registry::device_classes().iter().flat_map(|class| class.list());
    let found: Vec<_> = listings
        .map(|listing| Device { device: listing.spec, summary: listing.summary, problem: listing.problem })
        .collect();
    if json {
        return print_json_lines(&found);
    }
    let mut text = String::new();
    let width = found.iter().map(|device| device.device.chars().count()).max().unwrap_or_default();
    for Device { device, summary, problem } in &found {
        let _ = writeln!(text, "{device:width$}  {summary}");
        if let Some(problem) = problem {
            let _ = writeln!(text, "{:width$}  ! {problem}", "");
        }
    }
    if found.is_empty() {
        text.push_str("No device found on this host.\n");
    }
    text.push_str("\nDevice classes without a listed device: ");
    let shareable = registry::device_classes().iter().filter(|class| class.has_role(Role::Device));
    let words: Vec<_> = shareable.map(|class| form(class.name(), class.target())).collect();
    let _ = writeln!(text, "{} (`outboard modules NAME` explains)", words.join(", "));
    print(&text)
}

/// Formats `CLASS:ADDRESS`, as on the command line.
fn form(name: &str, target: &str) -> String {
    match target {
        "" => name.into(),
        target => format!("{name}:{target}"),
    }
}

#[derive(Serialize)]
struct Module {
    kind: &'static str,
    name: &'static str,
    summary: &'static str,
    #[serde(skip)]
    form: String,
    doc: &'static str,
    options: Vec<ModuleOption>,
    /// Default pipeline from the device to the application; used if neither host specifies `--via`.
    #[serde(skip_serializing_if = "str::is_empty")]
    via: &'static str,
}

#[derive(Serialize)]
struct ModuleOption {
    name: &'static str,
    accepts: String,
    default: &'static str,
    local: bool,
    doc: &'static str,
}

fn module(kind: &'static str, form: String, via: &'static str, entry: ModuleEntry) -> Module {
    let option = |spec: &OptionSpec| ModuleOption {
        name: spec.name,
        accepts: spec.kind.to_string(),
        default: spec.default,
        local: spec.scope == Scope::Local,
        doc: spec.doc,
    };
    let ModuleEntry { name, summary, doc, options } = entry;
    Module { kind, name, summary, form, doc, options: options.iter().map(option).collect(), via }
}

fn all_modules() -> Vec<Module> {
    let pairs = registry::pairs().iter().map(|pair| module("pair", pair.name().into(), "", pair.entry()));
    let devices = registry::device_classes().iter().map(|class| {
        let kind = match (class.has_role(Role::Device), class.has_role(Role::Application)) {
            (true, true) => "device and application",
            (true, false) => "device",
            (false, _) => "application",
        };
        let via = class.pipeline(FlowDirection::DeviceToApplication);
        module(kind, form(class.name(), class.target()), via, class.entry())
    });
    let transports = registry::transports().iter();
    let transports = transports.map(|class| {
        let form = match class.program() {
            Some(_) => format!("{}:COMMAND", class.name()),
            None => format!("{}://", class.name()),
        };
        module("transport", form, "", class.entry())
    });
    let limits = ModuleEntry {
        name: "limits",
        summary: "the limits of a host: `--limit NAME=VALUE`",
        doc: "Bounds of the resources that other hosts can use. Each host sets its own.\n",
        options: modules::limits::LIMITS,
    };
    let fixed = ModuleEntry {
        name: "fixed-limits",
        summary: "the limits that are the same on every host",
        doc: "These limits cannot be set. Errors and metrics name them.\n",
        options: modules::limits::FIXED_LIMITS,
    };
    let limits = [limits, fixed].map(|entry| module("limits", entry.name.into(), "", entry));
    pairs.chain(devices).chain(transports).chain(limits).collect()
}

/// `outboard modules`. A name may have two kinds, such as the pair and the device `null`: both are shown.
pub(crate) fn modules(name: Option<&str>, json: bool) -> Result<(), Failure> {
    let mut modules = all_modules();
    if let Some(name) = name {
        modules.retain(|module| module.name == name);
        if modules.is_empty() {
            return Err(Failure::Usage(unknown_module(name)));
        }
    }
    match (json, name) {
        (true, _) => print_json_lines(&modules),
        (false, None) => print(&overview(&modules)),
        (false, Some(_)) => print(&modules.iter().map(describe).collect::<Vec<_>>().join("\n")),
    }
}

/// Words for what a module does, and its name.
const OTHER_NAMES: &[(&[&str], &str)] = &[
    (&["jitter", "playout"], "buffer"),
    (&["batch", "coalesce"], "bundle"),
    (&["gzip", "zip", "lz4", "compression"], "compress"),
    (&["h264", "h265", "hevc", "vp8", "vp9", "av1", "codec", "jpeg"], "compress"),
    (&["crypt", "encryption", "aes", "tls"], "encrypt"),
    (&["redundancy", "retransmit", "loss"], "fec"),
    (&["order", "sort"], "reorder"),
    (&["resize", "resolution"], "scale"),
    (&["sync", "merge"], "synchronize"),
    (&["split", "balance", "fanout"], "multiplex"),
    (&["smooth", "filter"], "average"),
    (&["cache", "readahead"], "prefetch"),
    (&["capture", "dump", "log"], "record"),
    (&["throttle", "drop"], "latest"),
    (&["python", "javascript", "node", "sdk", "script", "program"], "exec"),
];

/// Returns the error for a name that no module has: the nearest module, and those whose page contains the word.
fn unknown_module(name: &str) -> String {
    let modules = all_modules();
    let word = name.to_lowercase();
    let other = OTHER_NAMES.iter().find(|(words, _)| words.contains(&&*word)).map(|(_, module)| *module);
    let other = other.or_else(|| registry::class_called(&word));
    let near = other.or_else(|| nearest(&word, modules.iter().map(|module| module.name)));
    // `H.264`
    let has_word = |module: &&Module| {
        let text = format!("{} {}", module.summary, module.doc).to_lowercase().replace('.', "");
        text.split(|c: char| !c.is_alphanumeric()).any(|known| known == word)
    };
    let mut known_by: Vec<_> = modules.iter().filter(has_word).map(|module| module.name).collect();
    known_by.retain(|module| Some(*module) != near);
    let names = |names: &[&str]| format!("`{}`", names.join("`, `"));
    // A pair, a device and a transport may have one name.
    let page = |module: &str| {
        let kinds: Vec<_> =
            modules.iter().filter(|known| known.name == module).map(|known| known.kind).collect();
        match kinds.as_slice() {
            [] | [_] => format!("`outboard modules {module}`"),
            kinds => format!("`outboard modules {module}` ({})", kinds.join("; ")),
        }
    };
    match (near, known_by.as_slice()) {
        (Some(near), []) => format!("there is no module `{name}`; did you mean `{near}`? See {}", page(near)),
        (Some(near), known_by) => format!(
            "there is no module `{name}`; did you mean `{near}`? See {}; {} also mention{} it",
            page(near),
            names(known_by),
            if known_by.len() == 1 { "s" } else { "" }
        ),
        (None, [first, ..]) => {
            format!("there is no module `{name}`; {} mention it, see {}", names(&known_by), page(first))
        }
        (None, []) => {
            let all: Vec<_> = modules.iter().map(|module| module.name).collect();
            format!("there is no module `{name}`; modules: {}", all.join(", "))
        }
    }
}

fn overview(modules: &[Module]) -> String {
    let mut text = String::new();
    let width = modules.iter().map(|module| module.form.chars().count()).max().unwrap_or_default();
    for (title, is_one) in [
        ("Pairs, for --via and --via-back", (|kind| kind == "pair") as fn(&str) -> bool),
        ("Device and application classes, for share, attach --as and connect", |kind| {
            kind.contains("device") || kind == "application"
        }),
        ("Transports, in front of a host; a program with --transport", |kind| kind == "transport"),
        ("Limits", |kind| kind == "limits"),
    ] {
        let _ = writeln!(text, "{title}");
        for module in modules.iter().filter(|module| is_one(module.kind)) {
            let _ = writeln!(text, "  {:width$}  {}", module.form, module.summary);
        }
        text.push('\n');
    }
    text.push_str("`outboard modules NAME` describes one, with its options.\n");
    text
}

fn describe(module: &Module) -> String {
    let mut text =
        format!("{} ({}): {}\n\n{}\n", module.form, module.kind, module.summary, module.doc.trim());
    if !module.via.is_empty() {
        let _ = writeln!(text, "\nDefault pipeline without --via: '{}'", module.via);
    }
    if module.options.is_empty() {
        text.push_str("\nNo options.\n");
        return text;
    }
    text.push_str("\nOptions:\n");
    for option in &module.options {
        let default = match option.default {
            "" => "empty",
            default => default,
        };
        let local = if option.local && module.kind == "pair" { "; set by this host only" } else { "" };
        let _ = writeln!(text, "  {}={default}", option.name);
        let _ = writeln!(text, "      {} ({}{local})", option.doc, option.accepts);
    }
    text
}
